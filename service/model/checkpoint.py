"""Checkpoints: loading one whole, saving one. Called by the engine's owners (service, command line) and by training."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from service.model.backbone import Backbone
from service.model.config import ModelConfig
from service.model.families import family_named, parse_config
from service.model.files import read_config, resolve
from service.model.layers import DecoderLayer, Total
from service.model.making import TensorOptions, WeightSource
from service.model.mrp import Mrp
from service.model.quantization import activation_parts, chosen_form, is_quantized, published_form, scales_of
from service.model.quantization.files import PublishedWeights
from service.model.shard import Shard
from service.model.weights import WeightFiles, fill, published_weights

#: bytes after which a file of weights is full
_SHARD = 2**30


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What an operator may say about loading. None keeps the checkpoint's own value.

    `quantization`: a form of `quantization.FORMS` for the layers' matrices; None keeps them as they are published.
    `shard`: the part of the model that is loaded, for one of several devices that hold it together.
    """

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    block_size: int | None = None
    mrp_residual: bool | None = None
    mrp_scale: float | None = None
    mrp_zero: bool = False
    quantization: str | None = None
    shard: Shard = Shard()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint. `mrp` is None for a bare backbone; `raw` is the parsed config.json.

    `config` is that of the whole model, whichever `shard` of it is here.
    """

    path: Path
    config: ModelConfig
    raw: Mapping[str, Any]
    backbone: Backbone
    mrp: Mrp | None
    shard: Shard = Shard()

    @property
    def own_config(self) -> ModelConfig:
        """The sizes of what is here: with a shard, of this rank's part."""
        return self.shard.of(self.config)

    @property
    def activation_parts(self) -> int:
        """Into how many parts ranks divide activations before they become 8 bits, each with scales of its own."""
        return activation_parts(self.config.quantization, self.shard.size)

    @property
    def wide_layers(self) -> frozenset[str]:
        """Parameters that are wide although layers of their kind are in 8 bits: published files may have it so."""
        if self.config.quantization is None:
            return frozenset()
        networks = [network for network in (self.backbone, self.mrp) if network is not None]
        names = (name for network in networks for name, _ in network.named_parameters(type(network).__name__))
        return frozenset(name for name in names if is_quantized(name))

    def share(self, total: Total) -> None:
        """Makes the layers parts of those that as many ranks have as there are shards; `total` adds them up."""
        for layer in [*self.backbone.layers, *(self.mrp.layers if self.mrp else ())]:
            cast(DecoderLayer, layer).share(total)

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' type."""
        return self.backbone.dtype


class _WithoutFirstValues(TorchFunctionMode):
    """Modules made inside draw no random weights.

    A checkpoint's weights replace them. On the meta device torch would import its whole compiler to draw them.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func is torch.nn.init.normal_ else func(*args, **kwargs)


def load_checkpoint(name: str | Path, options: LoadOptions | None = None) -> Checkpoint:
    """Loads a backbone and, if the checkpoint has one, its MRP module.

    `name`: a folder, or a hub name such as `heavyball/sdar-1.7b-mrp-3lyr`. Raises CheckpointError
    naming the file, key or weight that is missing, not used or of another shape.
    """
    options = options or LoadOptions()
    path = resolve(name)
    raw = read_config(path)
    # A part of a weight is taken on the CPU, where only that part of the file is read.
    source = WeightFiles(path, options.device if options.shard.size == 1 else "cpu")
    return build_checkpoint(path, raw, source, options)


def build_checkpoint(path: Path, raw: Mapping[str, Any], source: WeightSource, options: LoadOptions) -> Checkpoint:
    """A checkpoint of the weights of any source, made on its device. `path`: the folder it belongs to."""
    config = config_of(raw, options)
    if how := published_form(raw):
        source = PublishedWeights(source, how)
    backbone, mrp = _empty_networks(options.shard.of(config))
    fill(path, config, (backbone, mrp), source, TensorOptions(options.device, options.dtype, options.shard))
    if config.tie_word_embeddings:
        backbone.tie()
    modules = [module for module in (backbone, mrp) if module is not None]
    for module in modules:
        _cast_tables(module.to(options.device).eval().requires_grad_(False), options.dtype)
    if mrp is not None and options.mrp_zero:
        mrp.scale = 0.0
    return Checkpoint(path=path, config=config, raw=raw, backbone=backbone, mrp=mrp, shard=options.shard)


def config_of(raw: Mapping[str, Any], options: LoadOptions) -> ModelConfig:
    """What a config.json and an operator say of a model."""
    return _override(parse_config(raw, block_size=options.block_size), options)


def _cast_tables(module: nn.Module, dtype: torch.dtype) -> None:
    """Gives tables that no file has the type of the weights, which have theirs already."""
    for owner in module.modules():
        for name, table in owner.named_buffers(recurse=False):
            if table.is_floating_point():
                setattr(owner, name, table.to(dtype))


def num_parameters(config: ModelConfig) -> int:
    """Of backbone and MRP together."""
    return sum(weight.numel() for network in _empty_networks(config) if network for weight in network.parameters())


def weight_bytes(config: ModelConfig, dtype: torch.dtype, wide: Collection[str] = ()) -> int:
    """What the weights take, a shared matrix once. A quantized matrix takes a byte a number, and its scales.

    `wide`: `Checkpoint.wide_layers`.
    """
    size = 0
    for network in _empty_networks(config):
        for name, weight in network.named_parameters(type(network).__name__) if network else ():
            if config.quantization is not None and is_quantized(name) and name not in wide:
                scales = weight.numel() // weight.shape[-1] * scales_of(weight.shape[-1], config.scale_columns)
                size += weight.numel() + scales * dtype.itemsize
            else:
                size += weight.numel() * dtype.itemsize
    return size


def _empty_networks(config: ModelConfig) -> tuple[Backbone, Mrp | None]:
    """On the meta device: shapes without numbers."""
    with torch.device("meta"), _WithoutFirstValues():
        backbone = family_named(config.family).network(config)
        return backbone, Mrp(config, config.mrp) if config.mrp else None


def save_checkpoint(path: Path, raw: Mapping[str, Any], backbone: Backbone, mrp: Mrp | None) -> None:
    """Writes config.json and one model.safetensors in the published layout, in the modules' dtype."""
    path.mkdir(parents=True, exist_ok=True)
    weights = published_weights(parse_config(raw), backbone, mrp)
    stored = {name: weight.cpu().contiguous().clone() for name, weight in weights.items()}
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(dict(raw), indent=1) + "\n", encoding="utf-8")


def write_checkpoint(path: Path, raw: Mapping[str, Any], source: WeightSource) -> None:
    """Writes config.json and the weights of a source in files of at least 1 GiB each, and their index.

    At no time more than one file's weights are in memory.
    """
    path.mkdir(parents=True, exist_ok=True)
    index, shard, size = dict[str, str](), dict[str, Tensor](), 0
    names = list(source.names)
    for name in names:
        shard[name] = source.read(name).cpu().contiguous()
        size += shard[name].nbytes
        if size >= _SHARD or name == names[-1]:
            file = f"model-{len(set(index.values())) + 1:05d}.safetensors"
            save_file(shard, path / file, metadata={"format": "pt"})
            index |= dict.fromkeys(shard, file)
            shard, size = {}, 0
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}, indent=1) + "\n", "utf-8")
    (path / "config.json").write_text(json.dumps(dict(raw), indent=1) + "\n", encoding="utf-8")


def _override(config: ModelConfig, options: LoadOptions) -> ModelConfig:
    config = replace(config, quantization=chosen_form(config.quantization, options.quantization))
    if config.mrp is None:
        return config
    residual = config.mrp.residual if options.mrp_residual is None else options.mrp_residual
    scale = config.mrp.scale if options.mrp_scale is None else options.mrp_scale
    return replace(config, mrp=replace(config.mrp, residual=residual, scale=scale))
