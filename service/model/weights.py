"""Safetensors files and modules: which published weights make which parameter, read and written.

Every weight must be there, be used and have its shape. Which of them make a parameter says the backbone's family.
Knows no config file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from service.errors import CheckpointError
from service.model.backbone import Backbone
from service.model.config import ModelConfig
from service.model.families import family_named, qwen3
from service.model.files import open_file, weight_files
from service.model.layout import Layout, prefixed
from service.model.making import Making, TensorOptions, WeightSource
from service.model.mrp import Mrp
from service.model.quantization import Form, form_named, is_quantized
from service.model.quantization.files import PublishedWeights
from service.model.quantization.layers import put

#: bytes that are read from a file before it is opened anew
_MAPPED = 2**26
_MRP_PREFIX = "mrp_modules.0.model."


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

    Each parameter is made where it stays, wide or in 8 bits (`making.py`). Raises CheckpointError naming the `path` and
    the weight that is missing, not used or of another shape.

    `config`: of the whole model. The modules may be a part of it.
    """
    own, making = where.shard.of(config), Making(path, config, source, where)
    unused = set(source.names)
    if config.tie_word_embeddings:
        unused.discard("lm_head.weight")
    form = None if config.quantization is None else form_named(config.quantization)
    for target in list(_targets(own, *modules)):
        layout = target.layout_in(source.names)
        _make(target, making, layout, form if is_quantized(target.name) else None)
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
    Raises CheckpointError for a checkpoint in 8 bits.
    """
    if config.quantization is not None:
        raise CheckpointError(f"matrices are in 8 bits ({config.quantization}), weights are written wide only")
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


def _make(target: _Target, making: Making, layout: Layout, form: Form | None) -> None:
    """Puts the weight where the parameter is. `form`: in 8 bits, unless files in 8 bits have it wide."""
    shape, published = target.parameter.shape, isinstance(making.source, PublishedWeights)
    bits = None
    if form is not None:
        bits = making.bits(shape, layout) if published else making.quantized(shape, layout, form)
    if form is not None and bits is not None:
        put(target.module, target.name, bits, form)
        return
    owner, _, leaf = target.name.rpartition(".")
    weight = making.joined(shape, layout)
    setattr(target.module.get_submodule(owner), leaf, nn.Parameter(weight, requires_grad=False))
