"""Makes parameters of a checkpoint's weights: wide, or in 8 bits. `weights.py` says which.

At no time there is a second copy of more than one weight, or of one parameter's part that becomes 8 bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from service.errors import CheckpointError
from service.model.config import ModelConfig
from service.model.layout import Cut, Cuts, Layout, Part
from service.model.quantization import Form
from service.model.quantization.bits import Bits, largest, quantized
from service.model.quantization.files import PublishedWeights, cut_columns
from service.model.shard import Shard


class TensorOptions(NamedTuple):
    """Where tensors are made, of which type, and which part of the model they are."""

    device: str
    dtype: torch.dtype
    shard: Shard = Shard()


class WeightSource(Protocol):
    """Where the weights of a checkpoint come from, by their published names."""

    @property
    def names(self) -> Collection[str]:
        """Every weight there is."""

    def read(self, name: str) -> Tensor:
        """One of them, on any device and in any dtype."""


@dataclass(frozen=True, slots=True)
class Making:
    """Makes parameters of a source's weights. `config`: of the whole model, `path`: its folder."""

    path: Path
    config: ModelConfig
    source: WeightSource
    where: TensorOptions

    def joined(self, shape: torch.Size, layout: Layout) -> Tensor:
        """The weight of a parameter, made of its parts."""
        dtype = self.where.dtype
        if any(part.exact for part in layout):
            dtype = torch.promote_types(dtype, torch.float32)
        joined = torch.empty(shape, device=self.where.device, dtype=dtype)
        for part in layout:
            there = joined[part.place]
            weight = self._read(part, there.shape)
            if not weight.is_floating_point() or weight.itemsize < 2:
                raise CheckpointError(f"{self.path}: {part.name!r} is {weight.dtype}, which is no wide weight")
            there.copy_(self._own(weight, _cuts(there.shape, part.cut)))
        return joined

    def bits(self, shape: torch.Size, layout: Layout) -> Bits | None:
        """The same in 8 bits, where the files have all of it so; else None."""
        source = self.source
        if not isinstance(source, PublishedWeights) or not all(source.has_bits(part.name) for part in layout):
            return None
        values = torch.empty(shape, device=self.where.device, dtype=torch.int8)
        scales: Tensor | None = None
        for part in layout:
            there = values[part.place]
            own = self._own_bits(part, there.shape, source.bits(self._known(part)))
            if scales is None:
                scales = torch.empty(*shape[:-1], own.groups, device=self.where.device, dtype=self.where.dtype)
            there.copy_(own.values)
            scales[part.place].copy_(own.scales)
        return None if scales is None else Bits(values, scales)

    def quantized(self, shape: torch.Size, layout: Layout, form: Form) -> Bits:
        """The weight of a parameter in 8 bits, made of wide parts. Of several matrices, one after another.

        A scale is that of a whole row, of which this rank may have a part. So all ranks have the numbers of one device.
        """
        made = Bits(
            torch.empty(shape, device=self.where.device, dtype=torch.int8),
            torch.empty(*shape[:-1], 1, device=self.where.device, dtype=self.where.dtype),
        )
        for number, (matrix, peaks) in enumerate(self._matrices(shape, layout)):
            place = (number,) if len(shape) > 2 else ()
            own = quantized(matrix, form, peaks)
            made.values[place].copy_(own.values)
            made.scales[place].copy_(own.scales)
        return made

    def _matrices(self, shape: torch.Size, layout: Layout) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The matrices of a parameter, and what `_peaks` says of each."""
        if len(shape) == 2:
            yield self.joined(shape, layout), self._peaks(layout[0])
        elif layout[0].place and isinstance(layout[0].place[0], int):
            for _, parts in groupby(layout, key=lambda part: part.place[0]):
                own = [part._replace(place=part.place[1:]) for part in parts]
                yield self.joined(shape[1:], own), self._peaks(own[0])
        else:
            peaks = self._peaks(layout[0])
            yield from zip(self.joined(shape, layout), [None] * shape[0] if peaks is None else peaks, strict=True)

    def _peaks(self, part: Part) -> Tensor | None:
        """The largest number of each row of a weight of whose rows a rank has a part; None if it has whole rows."""
        if part.cut is None or self.where.shard.size == 1:
            return None
        weight = self.source.read(self._known(part))
        if _dim(part.cut) != weight.ndim - 1:
            return None
        return largest(weight.to(self.where.dtype)).to(self.where.device)

    def _known(self, part: Part) -> str:
        if part.name not in self.source.names:
            raise CheckpointError(f"{self.path}: weight {part.name!r} is missing")
        return part.name

    def _read(self, part: Part, own: torch.Size) -> Tensor:
        weight = self.source.read(self._known(part))
        self._check(part, own, weight.shape)
        return weight

    def _check(self, part: Part, own: torch.Size, shape: torch.Size) -> None:
        expected = self._published(own, _cuts(own, part.cut))
        if shape != expected:
            raise CheckpointError(
                f"{self.path}: {part.name!r} has shape {list(shape)}, config.json implies {list(expected)}"
            )

    def _own_bits(self, part: Part, shape: torch.Size, bits: Bits) -> Bits:
        """This rank's part of a published 8-bit matrix."""
        self._check(part, shape, bits.values.shape)
        cuts = _cuts(shape, part.cut)
        if not cuts or self.where.shard.size == 1:
            return bits
        values, (_, first) = self._own(bits.values, cuts), cuts[0]
        if first.dim == 0:
            return Bits(values, self._own(bits.scales, cuts))
        depth = bits.values.shape[1]
        own = self.where.shard.piece(depth, self._pieces(first))
        return Bits(values, cut_columns(bits.scales, depth, own))

    def _published(self, shape: torch.Size, cuts: Cuts) -> torch.Size:
        """The shape of the weight of which a rank's part has such a shape."""
        sizes = list(shape)
        for dim in {cut.dim for _, cut in cuts}:
            sizes[dim] = sum(own * self._pieces(cut) for own, cut in cuts)
        return torch.Size(sizes)

    def _own(self, weight: Tensor, cuts: Cuts) -> Tensor:
        """This rank's part of a published weight; a view where it is in one piece."""
        shard, start, parts = self.where.shard, 0, list[Tensor]()
        if shard.size == 1 or not cuts:
            return weight
        for own, cut in cuts:
            pieces = self._pieces(cut)
            first = shard.piece(own * pieces, pieces).start
            parts.append(weight.narrow(cut.dim, start + first, own))
            start += own * pieces
        return parts[0] if len(parts) == 1 else torch.cat(parts, cuts[0][1].dim)

    def _pieces(self, cut: Cut) -> int:
        return self.where.shard.key_pieces(self.config) if cut.keys else self.where.shard.size


def _cuts(shape: torch.Size, cut: Cut | Cuts | None) -> Cuts:
    """The cuts of a published weight of which a rank's part has such a shape."""
    if isinstance(cut, Cut):
        return ((shape[cut.dim], cut),)
    return cut or ()


def _dim(cut: Cut | Cuts) -> int:
    """The dimension in which it cuts."""
    return cut.dim if isinstance(cut, Cut) else cut[0][1].dim
