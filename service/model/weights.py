"""Safetensors files and modules: which published weights make which parameter, read and written.

Every weight must be there, be used and have its shape. Which of them make a parameter says the backbone's family.
Knows no config file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from service.errors import CheckpointError
from service.model.backbone import Backbone
from service.model.config import ModelConfig
from service.model.families import family_named, qwen3
from service.model.files import open_file, weight_files
from service.model.layout import Cut, Layout, prefixed
from service.model.mrp import Mrp
from service.model.quantization import QUANTIZED, form_named
from service.model.quantization.linear import quantize
from service.model.shard import Shard

#: bytes that are read from a file before it is opened anew
_MAPPED = 2**26
_MRP_PREFIX = "mrp_modules.0.model."


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


class WeightFiles:
    """The safetensors files of a checkpoint. `device`: where weights are read to.

    Raises CheckpointError for a file that is missing or not whole.
    """

    def __init__(self, path: Path, device: str = "cpu") -> None:
        self._device = device
        self._opened: Any = None
        self._at = Path()
        self._mapped = 0
        self._files: dict[str, Path] = {}
        for file in weight_files(path):
            with open_file(file, "pt") as opened:
                self._files |= dict.fromkeys(opened.keys(), file)

    @property
    def names(self) -> Collection[str]:
        """Every weight there is."""
        return self._files.keys()

    def read(self, name: str) -> Tensor:
        """One of them. On the CPU it is a view of its file.

        What is mapped counts as memory of the process, so a file is opened anew from time to time. Not for every
        weight: opening takes time for every name in a file, and experts have tens of thousands.
        """
        file = self._files[name]
        if file != self._at or self._mapped > _MAPPED:
            self._opened = open_file(file, "pt", self._device)
            self._at = file
            self._mapped = 0
        weight: Tensor = self._opened.get_tensor(name)
        self._mapped += weight.nbytes
        return weight


class WeightShapes:
    """The safetensors files of a checkpoint, of which only the headers are read: weights on the meta device.

    Raises CheckpointError for a file that is missing or not whole.
    """

    def __init__(self, path: Path) -> None:
        self._shapes: dict[str, list[int]] = {}
        for file in weight_files(path):
            with open_file(file, "pt") as opened:
                self._shapes |= {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118

    @property
    def names(self) -> Collection[str]:
        """Every weight there is."""
        return self._shapes.keys()

    def read(self, name: str) -> Tensor:
        """One of them, without its numbers."""
        return torch.empty(self._shapes[name], device="meta")


def fill(
    path: Path, config: ModelConfig, modules: tuple[Backbone, Mrp | None], source: WeightSource, where: TensorOptions
) -> None:
    """Replaces the (meta) parameters of backbone and MRP by the weights of a source.

    Each parameter is made where it stays, and quantized there. At no time there is a second copy of more than one
    weight. Raises
    CheckpointError naming the `path` and the weight that is missing, not used or of another shape.

    `config`: of the whole model. The modules may be a part of it.
    """
    own, making = where.shard.of(config), _Making(path, config, source, where)
    unused = set(source.names)
    if config.tie_word_embeddings:
        unused.discard("lm_head.weight")
    form = None if config.quantization is None else form_named(config.quantization)
    for target in list(_targets(own, *modules)):
        layout = target.layout_in(source.names)
        _assign(target, making.joined(target.parameter.shape, layout))
        if form is not None and target.layer in QUANTIZED:
            quantize(target.module, target.owner, form)
        unused -= {part.name for part in layout}
    if any(name.startswith(_MRP_PREFIX) and ".experts." in name for name in unused):
        raise CheckpointError(f"{path}: its MRP module has experts, which is not supported: MRP's layers are dense")
    if unused:
        raise CheckpointError(f"{path}: {len(unused)} weights are not used, first: {', '.join(sorted(unused)[:3])}")


def published_weights(
    config: ModelConfig, backbone: Backbone, mrp: Mrp | None, wanted: Collection[str] = ()
) -> dict[str, Tensor]:
    """The modules' weights under their published names; views where a parameter is several in files.

    `wanted`: names; a parameter that can be published in several ways is published under those.
    """
    weights: dict[str, Tensor] = {}
    for target in _targets(config, backbone, mrp):
        parameter = target.parameter.detach()
        weights |= {part.name: parameter[part.place] for part in target.layout_in(wanted)}
    return weights


@dataclass(frozen=True, slots=True)
class _Target:
    """A parameter, where it hangs, and the published weights that can make it."""

    module: nn.Module
    name: str
    layouts: Sequence[Layout]

    @property
    def parameter(self) -> nn.Parameter:
        return self.module.get_parameter(self.name)

    @property
    def owner(self) -> str:
        """The module that has the parameter, such as `layers.0.mlp.down_proj`."""
        return self.name.rpartition(".")[0]

    @property
    def layer(self) -> str:
        """The last part of that, such as `down_proj`."""
        return self.owner.rpartition(".")[2]

    def layout_in(self, names: Collection[str]) -> Layout:
        """The layout of which most weights are among the names; the first if none is."""
        if len(self.layouts) == 1:
            return self.layouts[0]
        return max(self.layouts, key=lambda layout: sum(part.name in names for part in layout) / len(layout))


def _targets(config: ModelConfig, backbone: Backbone, mrp: Mrp | None) -> Iterator[_Target]:
    """Every parameter once: a tied output head is the embedding and has no weight of its own."""
    family = family_named(config.family)
    for name, _ in backbone.named_parameters():
        yield _Target(backbone, name, family.layouts(config, name))
    if mrp is not None:
        for name, _ in mrp.named_parameters():
            yield _Target(mrp, name, [prefixed(_MRP_PREFIX, qwen3.of_module(config, name))])


def _assign(target: _Target, weight: Tensor) -> None:
    owner, _, leaf = target.name.rpartition(".")
    setattr(target.module.get_submodule(owner), leaf, nn.Parameter(weight, requires_grad=False))


@dataclass(frozen=True, slots=True)
class _Making:
    """Makes parameters of a source's weights. `config`: of the whole model, `path`: its folder."""

    path: Path
    config: ModelConfig
    source: WeightSource
    where: TensorOptions

    def joined(self, shape: torch.Size, layout: Layout) -> Tensor:
        """The weight of a parameter, made of its parts."""
        joined = torch.empty(shape, device=self.where.device, dtype=self.where.dtype)
        for part in layout:
            if part.name not in self.source.names:
                raise CheckpointError(f"{self.path}: weight {part.name!r} is missing")
            there = joined[part.place]
            weight, expected = self.source.read(part.name), self._published(there.shape, part.cut)
            if weight.shape != expected:
                raise CheckpointError(
                    f"{self.path}: {part.name!r} has shape {list(weight.shape)}, config.json implies {list(expected)}"
                )
            there.copy_(weight if part.cut is None else self._own(weight, part.cut))
        return joined

    def _published(self, shape: torch.Size, cut: Cut | None) -> torch.Size:
        """The shape of the weight of which a rank's part has such a shape."""
        if cut is None:
            return shape
        return torch.Size(size * self._pieces(cut) if dim == cut.dim else size for dim, size in enumerate(shape))

    def _own(self, weight: Tensor, cut: Cut) -> Tensor:
        """This rank's part of a published weight; a view where it is in one piece."""
        pieces, shard = self._pieces(cut), self.where.shard
        if pieces == 1:
            return weight
        matrices = weight.chunk(cut.stacked, cut.dim)
        length = matrices[0].shape[cut.dim]
        own = shard.piece(length, pieces)
        parts = [matrix.narrow(cut.dim, own.start, own.stop - own.start) for matrix in matrices]
        return parts[0] if len(parts) == 1 else torch.cat(parts, cut.dim)

    def _pieces(self, cut: Cut) -> int:
        return self.where.shard.key_pieces(self.config) if cut.keys else self.where.shard.size
