"""Weight updates: weights of the same shape replace the weights of a loaded checkpoint.

The new numbers are copied into the loaded tensors. So captured graphs, compiled kernels and every reference to a tensor
stay valid. Replicas (`service/replica`) and ranks (`service/parallel`) call this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from service.errors import CheckpointError
from service.model.checkpoint import Checkpoint, LoadOptions, build_checkpoint, config_of
from service.model.config import ModelConfig, Shard
from service.model.files import read_config, resolve
from service.model.quantization.schemes import published_scheme
from service.model.weights import WeightFiles, WeightShapes


def check_update(name: str | Path, served: ModelConfig, options: LoadOptions) -> None:
    """Checks that the weights of a checkpoint can replace the served ones. Reads only configs and headers.

    CheckpointError, which names the first field or weight that differs. `served`: the config of the whole model.
    """
    path = resolve(name)
    raw = _checked_config(path, served, options)
    build_checkpoint(path, raw, WeightShapes(path), replace(options, device="meta", quantization=None, shard=Shard()))


def load_update(name: str | Path, served: ModelConfig, options: LoadOptions) -> Checkpoint:
    """Loads the weights of a checkpoint into the host's memory. CheckpointError as in `check_update`."""
    path = resolve(name)
    raw = _checked_config(path, served, options)
    return build_checkpoint(path, raw, WeightFiles(path), replace(options, device="cpu"))


@torch.no_grad()
def apply_update(served: Checkpoint, loaded: Checkpoint) -> None:
    """Copies loaded weights into the served ones. No forward may run meanwhile."""
    pairs: list[tuple[nn.Module, nn.Module]] = [(served.backbone, loaded.backbone)]
    if served.mrp is not None and loaded.mrp is not None:
        pairs.append((served.mrp, loaded.mrp))
    for module, new_module in pairs:
        new_tensors = new_module.state_dict()
        for name, tensor in module.state_dict().items():
            tensor.copy_(new_tensors[name])


def _checked_config(path: Path, served: ModelConfig, options: LoadOptions) -> dict[str, Any]:
    """The parsed config.json. It must equal the config of the served weights."""
    raw = read_config(path)
    if published_scheme(raw) is not None:
        raise CheckpointError(f"{path}: these weights are published in 8 bits; only wide weights can be updated")
    difference = next(_differences(config_of(raw, options), served), None)
    if difference is not None:
        raise CheckpointError(f"{path}: {difference}")
    return raw


def _differences(new: Any, served: Any, owner: str = "") -> Iterator[str]:
    for field in fields(served):
        value, expected, name = getattr(new, field.name), getattr(served, field.name), f"{owner}{field.name}"
        if is_dataclass(value) and is_dataclass(expected):
            yield from _differences(value, expected, f"{name}.")
        elif value is None and is_dataclass(expected):
            yield f"it has no {name}, the served weights have"
        elif expected is None and is_dataclass(value):
            yield f"it has {name}, the served weights have none"
        elif value != expected:
            yield f"{name} is {value!r}, that of the served weights is {expected!r}"
