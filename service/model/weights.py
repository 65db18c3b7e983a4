"""Safetensors files and modules: which published weights make which parameter, read and written.

Every weight must be there, be used and have its shape. Matrices that are one in the modules (q/k/v, gate/up)
are several in files. Knows no config file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from service.errors import CheckpointError
from service.model.config import ModelConfig
from service.model.files import open_file, weight_files
from service.model.mrp import Mrp
from service.model.sdar import Sdar

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_MRP_PREFIX = "mrp_modules.0.model."


class TensorOptions(NamedTuple):
    """Where tensors are made, and of which type."""

    device: str
    dtype: torch.dtype


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

        The file is open only as long as the weight is used: what is mapped counts as memory of the process.
        """
        with open_file(self._files[name], "pt", self._device) as file:
            weight: Tensor = file.get_tensor(name)
            return weight


def fill(
    path: Path, config: ModelConfig, modules: tuple[Sdar, Mrp | None], source: WeightSource, where: TensorOptions
) -> None:
    """Replaces the (meta) parameters of backbone and MRP by the weights of a source.

    Each parameter is made where it stays. At no time there is a second copy of more than one weight. Raises
    CheckpointError naming the `path` and the weight that is missing, not used or of another shape.
    """
    unused = set(source.names)
    if config.tie_word_embeddings:
        unused.discard("lm_head.weight")
    for target in list(_targets(*modules)):
        _assign(target, _joined(path, config, target, source, where))
        unused -= set(target.names)
    if unused:
        raise CheckpointError(f"{path}: {len(unused)} weights are not used, first: {', '.join(sorted(unused)[:3])}")


def published_weights(config: ModelConfig, backbone: Sdar, mrp: Mrp | None) -> dict[str, Tensor]:
    """The modules' weights under their published names; views where a matrix is several in files."""
    weights: dict[str, Tensor] = {}
    for target in _targets(backbone, mrp):
        parameter = target.parameter.detach()
        weights |= zip(target.names, parameter.split(_heights(config, target.names, len(parameter))), strict=True)
    return weights


@dataclass(frozen=True, slots=True)
class _Target:
    """A parameter, where it hangs, and the published weights it is made of."""

    module: nn.Module
    name: str
    names: list[str]

    @property
    def parameter(self) -> nn.Parameter:
        return self.module.get_parameter(self.name)


def _targets(backbone: Sdar, mrp: Mrp | None) -> Iterator[_Target]:
    """Every parameter once: a tied output head is the embedding and has no weight of its own."""
    for name, _ in backbone.named_parameters():
        yield _Target(backbone, name, _published(name if name.startswith("lm_head") else f"model.{name}"))
    if mrp is not None:
        for name, _ in mrp.named_parameters():
            yield _Target(mrp, name, _published(_MRP_PREFIX + name))


def _published(name: str) -> list[str]:
    for fused, parts in _FUSED.items():
        if fused in name:
            return [name.replace(fused, part) for part in parts]
    return [name]


def _heights(config: ModelConfig, names: list[str], rows: int) -> list[int]:
    """How many of a fused matrix's rows each published weight gives."""
    if len(names) == len(_FUSED["qkv_proj"]):
        return [heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    return [rows // len(names)] * len(names)


def _assign(target: _Target, weight: Tensor) -> None:
    owner, _, leaf = target.name.rpartition(".")
    setattr(target.module.get_submodule(owner), leaf, nn.Parameter(weight, requires_grad=False))


def _joined(path: Path, config: ModelConfig, target: _Target, source: WeightSource, where: TensorOptions) -> Tensor:
    """The weight of a parameter, made of its parts."""
    shape = target.parameter.shape
    joined = torch.empty(shape, device=where.device, dtype=where.dtype)
    heights = _heights(config, target.names, shape[0])
    for name, rows in zip(target.names, joined.split(heights), strict=True):
        if name not in source.names:
            raise CheckpointError(f"{path}: weight {name!r} is missing")
        part = source.read(name)
        if part.shape != rows.shape:
            raise CheckpointError(
                f"{path}: {name!r} has shape {list(part.shape)}, config.json implies {list(rows.shape)}"
            )
        rows.copy_(part)
    return joined
