"""Weight updates: weights of the same shape replace the weights of a loaded checkpoint, or some of them.

The served weights are an overlay of folders: a weight comes from the last folder that has it. A folder may have all
weights, the backbone's alone, MRP's alone, or any others.

The new numbers are copied into the loaded tensors. So captured graphs, compiled kernels and every reference to a tensor
stay valid. Replicas (`service/replica`) and ranks (`service/parallel`) call this.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from service.errors import CheckpointError, OutOfMemory
from service.model.checkpoint import Checkpoint, config_of
from service.model.config import CheckedUpdate, ModelConfig, Shard
from service.model.device import give_back, out_of_memory_as
from service.model.files import read_config, read_keys, resolve
from service.model.parameter_builder import LoadOptions
from service.model.quantization.prequantized import PrequantizedWeights
from service.model.quantization.schemes import PublishedScheme, published_scheme
from service.model.weight_checks import CheckedWeights
from service.model.weight_mapping import WeightSource
from service.model.weights import HEAD, MRP_PREFIX, OverlaidWeights, WeightFiles, has_own_head, load_networks


def check_update(
    folders: Sequence[str], served: ModelConfig, options: LoadOptions, *, partial: bool = False
) -> CheckedUpdate:
    """Checks that the weights of folders can replace the served ones. Reads configs, headers, and the newest weights.

    CheckpointError, which names the first field or weight that differs, or whose numbers cannot be right.
    `served`: the config of the whole model. `partial`: the last folder may have any of the weights; else it has the
    whole backbone, with or without MRP.
    """
    checked = _check_shapes(folders, served, options, partial=partial)
    path = resolve(folders[-1])
    files = WeightFiles(path)
    weights = CheckedWeights(path, files, options.dtype)
    for name in weights.names:  # a diverged training writes NaN
        weights.read(name)
    weights.finish()
    if served.tie_word_embeddings and HEAD in files.names:
        older = (WeightFiles(resolve(folder)) for folder in checked.folders[:-1])
        if has_own_head(served, OverlaidWeights((*older, files)), options.dtype):
            raise CheckpointError(
                f"{path}: {HEAD!r} is not the embedding, of which the served weights have one for both"
            )
    return checked


def _check_shapes(folders: Sequence[str], served: ModelConfig, options: LoadOptions, *, partial: bool) -> CheckedUpdate:
    path = resolve(folders[-1])
    newest = WeightFiles(path, "meta")
    if not newest.names:
        raise CheckpointError(f"{path}: its files have no weights")
    has_mrp = any(name.startswith(MRP_PREFIX) for name in newest.names)
    _check_config(path, served, options, newest.names, partial=partial)
    wide = replace(served, quantization=None)
    if not partial:
        _build(path, wide if has_mrp else replace(wide, mrp=None), newest, options)
        if has_mrp or served.mrp is None:
            return CheckedUpdate((folders[-1],), has_mrp)  # the earlier folders may be gone
    paths = [*map(resolve, folders[:-1]), path]
    shapes = [*(WeightFiles(earlier, "meta") for earlier in paths[:-1]), newest]
    needed = _needed(shapes)
    for index in needed[:-1]:
        if _published_scheme_of(paths[index]) is not None:
            raise CheckpointError(
                f"{paths[-1]}: it has some of the weights only, and the others are published in 8 bits ({paths[index]})"
            )
    _build(paths[-1], wide, OverlaidWeights(shapes[index] for index in needed), options)
    return CheckedUpdate(tuple(folders[index] for index in needed), has_mrp)


def load_update(
    folders: Sequence[str | Path], served: ModelConfig, options: LoadOptions, *, newest_only: bool = False
) -> Checkpoint:
    """Loads the weights of checked folders into the host's memory. CheckpointError for a weight that cannot be read.

    `newest_only`: only the weights of the last folder; all other parameters have no numbers.
    """
    paths = [resolve(folder) for folder in folders]
    sources = [WeightFiles(path) for path in paths]
    source: WeightSource = OverlaidWeights(sources)
    if len(paths) == 1 and (published := _published_scheme_of(paths[0])):  # the weights of the start
        source = PrequantizedWeights(sources[0], published)
    changed = sources[-1].names if newest_only else None
    networks = load_networks(paths[-1], served, source, replace(options, device="cpu"), changed)
    return Checkpoint(paths[-1], served, {}, *networks, options.shard)


@torch.no_grad()
def apply_update(served: Checkpoint, loaded: Checkpoint) -> None:
    """Copies loaded weights into the served ones. No forward may run meanwhile."""
    for network, new_network in zip(served.networks, loaded.networks, strict=True):
        new_tensors = new_network.state_dict()
        for name, tensor in network.state_dict().items():
            new = new_tensors.get(name)  # a layer that is not updated is not quantized, so its tensors differ in name
            if new is not None and not new.is_meta:
                tensor.copy_(new)


def drop_weights(served: Checkpoint) -> None:
    """Gives the memory of all weights back. Their numbers are lost. No forward may run before `restore_weights`."""
    device = served.device
    _replace_tensors(served, torch.device("meta"))
    give_back(device)


def restore_weights(served: Checkpoint, device: torch.device) -> None:
    """Takes memory for all weights again, without numbers. OutOfMemory changes nothing."""
    with out_of_memory_as(OutOfMemory("the device has no memory for the weights", retry_after=1.0)):
        _replace_tensors(served, device)


@torch.no_grad()
def _replace_tensors(served: Checkpoint, device: torch.device) -> None:
    """Replaces every tensor that an update fills by an empty one on a device. Shared tensors stay shared."""
    tensors = [(network, *item) for network in served.networks for item in network.state_dict(keep_vars=True).items()]
    empty = {id(tensor): torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for _, _, tensor in tensors}
    for network, name, tensor in tensors:
        owner, _, leaf = name.rpartition(".")
        new = empty[id(tensor)]
        is_parameter = isinstance(tensor, nn.Parameter)
        setattr(network.get_submodule(owner), leaf, nn.Parameter(new, requires_grad=False) if is_parameter else new)


def _needed(shapes: Sequence[WeightFiles]) -> list[int]:
    """The indices of folders with a weight that no later folder has, ascending."""
    needed, names = list[int](), set[str]()
    for index in reversed(range(len(shapes))):
        if not names.issuperset(shapes[index].names):
            needed.insert(0, index)
            names.update(shapes[index].names)
    return needed


def _build(path: Path, config: ModelConfig, source: WeightSource, options: LoadOptions) -> None:
    """Builds networks without numbers. CheckpointError if a weight is missing, not used or of another shape."""
    load_networks(path, config, source, replace(options, device="meta", shard=Shard()))


def _check_config(
    path: Path, served: ModelConfig, options: LoadOptions, names: Collection[str], *, partial: bool
) -> None:
    """CheckpointError if config.json does not equal the config of the served weights. `partial`: it may be missing.

    `names`: the folder's weights. What they do not have, or say themselves, does not count: MRP's part of the config,
    and whether the head is tied. A trainer saves no tokenizer, so end tokens may be missing.
    """
    if partial and not (path / "config.json").exists():
        return
    raw = read_config(path)
    if published_scheme(raw) is not None:
        raise CheckpointError(f"{path}: these weights are published in 8 bits; only wide weights can be updated")
    config = config_of(raw, options)
    if not any(name.startswith(MRP_PREFIX) for name in names):
        config = replace(config, mrp=served.mrp)
    if config.tie_word_embeddings and HEAD in names:
        config = replace(config, tie_word_embeddings=served.tie_word_embeddings)
    if {*config.eos_token_ids} <= {*served.eos_token_ids}:
        config = replace(config, eos_token_ids=served.eos_token_ids)
    if difference := next(_differences(config, served), None):
        raise CheckpointError(f"{path}: {difference}")


def _published_scheme_of(path: Path) -> PublishedScheme | None:
    return published_scheme(read_keys(path)) if (path / "config.json").exists() else None


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
