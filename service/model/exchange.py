"""Other weights of the same shape in the place of those that a checkpoint has.

The new numbers are copied into the tensors that are there. So captured graphs, compiled kernels and everything that
refers to a tensor stay valid. Replicas (`service/replica/weight_update.py`) and ranks (`service/parallel`) call this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch

from service.errors import CheckpointError
from service.model.checkpoint import Checkpoint, LoadOptions, build_checkpoint, config_of
from service.model.config import ModelConfig
from service.model.files import read_config, resolve
from service.model.quantization import published_form
from service.model.shard import Shard
from service.model.weights import WeightFiles, WeightShapes


def check(name: str | Path, served: ModelConfig, options: LoadOptions) -> None:
    """Whether the weights of a checkpoint can take the place of served ones. Only configs and headers are read.

    CheckpointError, which names the first field or weight that differs, if they cannot. `served`: of the whole model.
    """
    path = resolve(name)
    raw = _checked_config(path, served, options)
    build_checkpoint(path, raw, WeightShapes(path), replace(options, device="meta", quantization=None, shard=Shard()))


def fetch(name: str | Path, served: ModelConfig, options: LoadOptions) -> Checkpoint:
    """The weights of a checkpoint in the host's memory. CheckpointError as in `check`."""
    path = resolve(name)
    raw = _checked_config(path, served, options)
    return build_checkpoint(path, raw, WeightFiles(path), replace(options, device="cpu"))


@torch.no_grad()
def take(served: Checkpoint, fresh: Checkpoint) -> None:
    """Copies the numbers of fetched weights into the served ones. Nothing may be computed meanwhile."""
    pairs = [(served.backbone, fresh.backbone)]
    if served.mrp is not None and fresh.mrp is not None:
        pairs.append((served.mrp, fresh.mrp))  # type: ignore[arg-type]  # both are modules
    for own, new in pairs:
        numbers = new.state_dict()
        for name, tensor in own.state_dict().items():
            tensor.copy_(numbers[name])


def _checked_config(path: Path, served: ModelConfig, options: LoadOptions) -> dict[str, Any]:
    """The parsed config.json, which says the same as that of the served weights."""
    raw = read_config(path)
    if published_form(raw) is not None:
        raise CheckpointError(f"{path}: these weights are published in 8 bits; only wide weights can be exchanged")
    difference = next(_differences(config_of(raw, options), served), None)
    if difference is not None:
        raise CheckpointError(f"{path}: {difference}")
    return raw


def _differences(new: Any, served: Any, owner: str = "") -> Iterator[str]:
    for one in fields(served):
        found, wanted, name = getattr(new, one.name), getattr(served, one.name), f"{owner}{one.name}"
        if is_dataclass(found) and is_dataclass(wanted):
            yield from _differences(found, wanted, f"{name}.")
        elif found is None and is_dataclass(wanted):
            yield f"it has no {name}, the served weights have"
        elif wanted is None and is_dataclass(found):
            yield f"it has {name}, the served weights have none"
        elif found != wanted:
            yield f"{name} is {found!r}, that of the served weights is {wanted!r}"
