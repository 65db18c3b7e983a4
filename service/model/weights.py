"""Safetensors files and modules: which published weights make which parameter, read and written.

Every weight must be there, be used and have its shape. Matrices that are one in the modules (q/k/v, gate/up)
are several in files. Knows no config file and no device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from service.errors import CheckpointError
from service.model.config import ModelConfig
from service.model.files import open_weights
from service.model.mrp import Mrp
from service.model.sdar import Sdar

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_MRP_PREFIX = "mrp_modules.0.model."


def fill(path: Path, config: ModelConfig, modules: tuple[Sdar, Mrp | None], dtype: torch.dtype) -> None:
    """Replaces the (meta) parameters of backbone and MRP by the weights of a checkpoint's files.

    Raises CheckpointError naming the file or weight that is missing, not used or of another shape.
    """
    backbone, mrp = modules
    with ExitStack() as stack:
        weights = _Weights(path, config, open_weights(path, stack, "pt"))
        unused = set(weights.files)
        if config.tie_word_embeddings:
            unused.discard("lm_head.weight")
        for target in list(_targets(backbone, mrp)):
            _assign(target, weights.read(target.names, target.parameter.shape).to(dtype))
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


@dataclass(frozen=True, slots=True)
class _Weights:
    """The open files of a checkpoint, by weight name."""

    path: Path
    config: ModelConfig
    files: Mapping[str, Any]

    def read(self, names: list[str], shape: torch.Size) -> Tensor:
        """A parameter of that shape, made of the named weights."""
        parts = []
        for name, height in zip(names, _heights(self.config, names, shape[0]), strict=True):
            if name not in self.files:
                raise CheckpointError(f"{self.path}: weight {name!r} is missing")
            part, wanted = self.files[name].get_tensor(name), [height, *shape[1:]]
            if list(part.shape) != wanted:
                raise CheckpointError(
                    f"{self.path}: {name!r} has shape {list(part.shape)}, config.json implies {wanted}"
                )
            parts.append(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)
