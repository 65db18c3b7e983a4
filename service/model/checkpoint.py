"""Checkpoints: loading one whole, saving one. Called by the engine's owners (service, command line) and by training."""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file

from service.errors import CheckpointError
from service.model.backbone import Backbone
from service.model.config import ModelConfig, Shard
from service.model.device import check_quantization, out_of_memory_as
from service.model.families import parse_config
from service.model.files import read_config, resolve
from service.model.layers import AllReduce, DecoderLayer
from service.model.mrp import Mrp
from service.model.parameter_builder import LoadOptions
from service.model.quantization.prequantized import PrequantizedWeights
from service.model.quantization.schemes import (
    activation_parts,
    chosen_scheme,
    is_quantized,
    published_scheme,
    scales_per_row,
)
from service.model.weight_checks import CheckedWeights
from service.model.weight_mapping import WeightSource
from service.model.weights import WeightFiles, empty_networks, has_own_head, load_networks, published_weights

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint. `mrp` is None for a bare backbone; `raw` is the parsed config.json.

    `config` describes the whole model, even if only a `shard` of it is loaded.
    """

    path: Path
    config: ModelConfig
    raw: Mapping[str, Any]
    backbone: Backbone
    mrp: Mrp | None
    shard: Shard = Shard()

    @property
    def shard_config(self) -> ModelConfig:
        return self.shard.divide(self.config)

    @property
    def networks(self) -> list[Backbone | Mrp]:
        return [self.backbone] if self.mrp is None else [self.backbone, self.mrp]

    @property
    def activation_parts(self) -> int:
        return activation_parts(self.config.quantization, self.shard.size)

    @property
    def wide_layers(self) -> frozenset[str]:
        """Parameters that stayed wide although their kind of layer is quantized. Published files may mix both."""
        if self.config.quantization is None:
            return frozenset()
        names = (name for network in self.networks for name, _ in network.named_parameters(type(network).__name__))
        return frozenset(name for name in names if is_quantized(name))

    def make_tensor_parallel(self, all_reduce: AllReduce) -> None:
        for network in self.networks:
            for layer in network.layers:
                cast(DecoderLayer, layer).make_tensor_parallel(all_reduce)

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.dtype


def load_checkpoint(name: str | Path, options: LoadOptions | None = None) -> Checkpoint:
    """Loads a backbone and, if the checkpoint has one, its MRP module.

    `name`: a folder, or a hub name such as `heavyball/sdar-1_7b-mrp-3lyr`. CheckpointError names the file, key or
    weight that is missing, not used or of another shape.
    """
    options = options or LoadOptions()
    path = resolve(name)
    raw = read_config(path)
    # A shard of a weight is read on the CPU, where only that part of the file is read. The first rank checks the whole.
    source: WeightSource = WeightFiles(path, options.device if options.shard.size == 1 else "cpu")
    checked = CheckedWeights(path, source, options.dtype)
    with out_of_memory_as(CheckpointError(f"{path}: there is no memory for a checkpoint of these sizes")):
        checkpoint = build_checkpoint(path, raw, source if options.shard.rank else checked, options)
    checked.finish()
    return checkpoint


def build_checkpoint(path: Path, raw: Mapping[str, Any], source: WeightSource, options: LoadOptions) -> Checkpoint:
    """A checkpoint of the weights of any source, made on its device. `path`: the folder of the checkpoint."""
    config = config_of(raw, options)
    check_quantization(config.quantization, torch.device(options.device))
    if published := published_scheme(raw):
        source = PrequantizedWeights(source, published)
    if config.tie_word_embeddings and options.device != "meta" and has_own_head(config, source, options.dtype):
        _log.warning(
            "%s: config.json ties the output head to the embedding, but the files have another: it is used", path
        )
        config = replace(config, tie_word_embeddings=False)
    checkpoint = Checkpoint(path, config, raw, *load_networks(path, config, source, options), options.shard)
    for network in checkpoint.networks:
        network.to(options.device).eval().requires_grad_(False)
        for owner in network.modules():
            for name, table in owner.named_buffers(recurse=False):  # no file has them: weights have their type already
                if table.is_floating_point():
                    setattr(owner, name, table.to(options.dtype))
    return checkpoint


def config_of(raw: Mapping[str, Any], options: LoadOptions) -> ModelConfig:
    """The config of a parsed config.json with an operator's options."""
    config = parse_config(raw, block_size=options.block_size)
    config = replace(config, quantization=chosen_scheme(config.quantization, options.quantization))
    if config.mrp is None:
        return config
    residual = config.mrp.residual if options.mrp_residual is None else options.mrp_residual
    scale = config.mrp.scale if options.mrp_scale is None else options.mrp_scale
    return replace(config, mrp=replace(config.mrp, residual=residual, scale=scale))


def num_parameters(config: ModelConfig) -> int:
    """The number of parameters of backbone and MRP together."""
    return sum(weight.numel() for network in empty_networks(config) if network for weight in network.parameters())


def weight_bytes(config: ModelConfig, dtype: torch.dtype, wide: Collection[str] = ()) -> int:
    """The size of the weights in bytes, a shared matrix once. A quantized matrix takes a byte a number, and its scales.

    `wide`: `Checkpoint.wide_layers`.
    """
    size = 0
    for network in empty_networks(config):
        for name, weight in network.named_parameters(type(network).__name__) if network else ():
            if config.quantization is not None and is_quantized(name) and name not in wide:
                scales = weight.numel() // weight.shape[-1] * scales_per_row(weight.shape[-1], config.scale_columns)
                size += weight.numel() + scales * dtype.itemsize
            else:
                size += weight.numel() * dtype.itemsize
    return size


def save_checkpoint(path: Path, raw: Mapping[str, Any], backbone: Backbone, mrp: Mrp | None) -> None:
    """Writes config.json and one model.safetensors in the published layout, in the modules' dtype."""
    path.mkdir(parents=True, exist_ok=True)
    weights = published_weights(parse_config(raw), backbone, mrp)
    stored = {name: weight.cpu().contiguous().clone() for name, weight in weights.items()}
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(dict(raw), indent=1) + "\n", encoding="utf-8")
