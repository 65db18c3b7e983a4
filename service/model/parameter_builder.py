"""Builds parameters from a checkpoint's weights: wide, or in 8 bits. `weights.py` says which.

There is never a second copy of more than one weight, or of more than one slice that is quantized.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from service.errors import CheckpointError
from service.model.config import ModelConfig, Shard
from service.model.quantization.layers import QuantizedTensor, quantized, row_peaks
from service.model.quantization.prequantized import PrequantizedWeights, column_scales
from service.model.quantization.schemes import QuantScheme
from service.model.weight_mapping import ShardDim, WeightMapping, WeightSlice, WeightSource


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """An operator's options of loading. None keeps the checkpoint's value."""

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    block_size: int | None = None
    mrp_residual: bool | None = None
    mrp_scale: float | None = None
    quantization: str | None = None  # a name in `QUANT_SCHEMES` for the layers' weights
    shard: Shard = Shard()  # the shard of the model for one of several tensor-parallel devices


@dataclass(frozen=True, slots=True)
class ParameterBuilder:
    """Builds parameters from a source's weights. `config`: the whole model's config. `path`: its folder, for errors."""

    path: Path
    config: ModelConfig
    source: WeightSource
    options: LoadOptions

    def concatenated(self, shape: torch.Size, mapping: WeightMapping) -> Tensor:
        dtype = self.options.dtype
        if any(part.exact for part in mapping):
            dtype = torch.promote_types(dtype, torch.float32)
        parameter = torch.empty(shape, device=self.options.device, dtype=dtype)
        for part in mapping:
            target = parameter[part.indices]
            weight = self.source.read(self._checked_name(part))
            self._check_shape(part, target.shape, weight.shape)
            if not weight.is_floating_point() or weight.itemsize < 2:
                raise CheckpointError(f"{self.path}: {part.name!r} is {weight.dtype}, which is no wide weight")
            target.copy_(self._shard_of(weight, part.shards, target.shape))
        return parameter

    def prequantized(self, shape: torch.Size, mapping: WeightMapping) -> QuantizedTensor | None:
        """The weight of a parameter in 8 bits, if the files have all its slices in 8 bits; else None."""
        source = self.source
        if not isinstance(source, PrequantizedWeights) or not all(source.is_quantized(part.name) for part in mapping):
            return None
        values = torch.empty(shape, device=self.options.device, dtype=torch.int8)
        scales: Tensor | None = None
        for part in mapping:
            target = values[part.indices]
            weight = self._quantized_shard(part, target.shape, source.read_quantized(self._checked_name(part)))
            if scales is None:
                scales = torch.empty(*shape[:-1], weight.groups, device=self.options.device, dtype=self.options.dtype)
            target.copy_(weight.values)
            scales[part.indices].copy_(weight.scales)
        return None if scales is None else QuantizedTensor(values, scales)

    def quantized(self, shape: torch.Size, mapping: WeightMapping, scheme: QuantScheme) -> QuantizedTensor:
        """The weight of a parameter, quantized from wide slices. Several matrices come one after another.

        A scale belongs to a whole row, even if this rank has a part of the row. So the ranks have the numbers of a
        single device.
        """
        parameter = QuantizedTensor(
            torch.empty(shape, device=self.options.device, dtype=torch.int8),
            torch.empty(*shape[:-1], 1, device=self.options.device, dtype=self.options.dtype),
        )
        for expert, (matrix, peaks) in enumerate(self._matrices(shape, mapping)):
            index = (expert,) if len(shape) > 2 else ()
            weight = quantized(matrix, scheme, peaks)
            parameter.values[index].copy_(weight.values)
            parameter.scales[index].copy_(weight.scales)
        return parameter

    def _matrices(self, shape: torch.Size, mapping: WeightMapping) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The matrices of a parameter, each with its `_peaks`."""
        if len(shape) == 2:
            yield self.concatenated(shape, mapping), self._peaks(mapping[0])
        elif mapping[0].indices and isinstance(mapping[0].indices[0], int):
            for _, parts in groupby(mapping, key=lambda part: part.indices[0]):
                matrix = [part._replace(indices=part.indices[1:]) for part in parts]
                yield self.concatenated(shape[1:], matrix), self._peaks(matrix[0])
        else:
            peaks = self._peaks(mapping[0])
            weights = self.concatenated(shape, mapping)
            yield from zip(weights, [None] * shape[0] if peaks is None else peaks, strict=True)

    def _peaks(self, part: WeightSlice) -> Tensor | None:
        """The largest number of each whole row, if this rank has a part of each row; else None."""
        if not part.shards or self.options.shard.size == 1:
            return None
        weight = self.source.read(self._checked_name(part))
        if part.shards[0].dim != weight.ndim - 1:
            return None
        return row_peaks(weight.to(self.options.dtype)).to(self.options.device)

    def _checked_name(self, part: WeightSlice) -> str:
        if part.name not in self.source.names:
            raise CheckpointError(f"{self.path}: weight {part.name!r} is missing")
        return part.name

    def _check_shape(self, part: WeightSlice, target: torch.Size, shape: torch.Size) -> None:
        sizes = list(target)
        for dim in {shard.dim for shard in part.shards}:
            sizes[dim] = sum((shard.size or target[dim]) * self._num_pieces(shard) for shard in part.shards)
        if list(shape) != sizes:
            raise CheckpointError(f"{self.path}: {part.name!r} has shape {list(shape)}, config.json implies {sizes}")

    def _quantized_shard(self, part: WeightSlice, shape: torch.Size, weight: QuantizedTensor) -> QuantizedTensor:
        self._check_shape(part, shape, weight.values.shape)
        if not part.shards or self.options.shard.size == 1:
            return weight
        values = self._shard_of(weight.values, part.shards, shape)
        if part.shards[0].dim == 0:
            return QuantizedTensor(values, self._shard_of(weight.scales, part.shards, shape))
        depth = weight.values.shape[1]
        columns = self.options.shard.piece(depth, self._num_pieces(part.shards[0]))
        return QuantizedTensor(values, column_scales(weight.scales, depth, columns))

    def _shard_of(self, weight: Tensor, shards: tuple[ShardDim, ...], target: torch.Size) -> Tensor:
        """This rank's shard of a published weight, of the target's shape; a view where it is in one piece."""
        rank, start, parts = self.options.shard, 0, list[Tensor]()
        if rank.size == 1 or not shards:
            return weight
        for shard in shards:
            size, pieces = shard.size or target[shard.dim], self._num_pieces(shard)
            first = rank.piece(size * pieces, pieces).start
            parts.append(weight.narrow(shard.dim, start + first, size))
            start += size * pieces
        return parts[0] if len(parts) == 1 else torch.cat(parts, shards[0].dim)

    def _num_pieces(self, shard: ShardDim) -> int:
        return self.options.shard.num_kv_pieces(self.config) if shard.kv_heads else self.options.shard.size
