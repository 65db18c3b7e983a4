"""Published checkpoints with 8-bit matrices in files: what `quantization_config` of config.json says. Needs no torch.

Two kinds are read: `compressed-tensors` (llm-compressor's) and `fp8` (Qwen3's and DeepSeek's). Which weights are in
8 bits say the files: those that have a scale beside them. Formats: github.com/vllm-project/compressed-tensors, and
transformers' `FineGrainedFP8Config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.errors import CheckpointError

#: what is read, for errors
_KNOWN = (
    "read are compressed-tensors of 8 bits, symmetric (int: weights alone, or with dynamic activations of 8 bits a "
    "token; float: weights alone or with dynamic activations) and fp8 with dynamic activations"
)
#: formats of compressed-tensors whose weights are read
_FORMATS = ("int-quantized", "pack-quantized", "float-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True)
class Published:
    """How files keep matrices in 8 bits. `form`: ours, which computes the same.

    `rows`, `columns`: the block of a matrix that shares a scale; None is all of them.
    """

    form: str
    rows: int | None
    columns: int | None


def published_form(raw: Mapping[str, Any]) -> Published | None:
    """What a parsed config.json says; None for wide weights. CheckpointError for a format that is not read."""
    config = raw.get("quantization_config") or raw.get("compression_config")
    if not config:
        return None
    method = config.get("quant_method") if isinstance(config, Mapping) else config
    if method == "fp8":
        return _fp8(config)
    if method == "compressed-tensors":
        return _compressed_tensors(config)
    raise _refused(f"quant_method is {method!r}")


def _fp8(config: Mapping[str, Any]) -> Published:
    block = config.get("weight_block_size")
    if config.get("activation_scheme", "dynamic") != "dynamic":
        raise _refused(f"activation_scheme is {config['activation_scheme']!r}")
    if config.get("fmt", "e4m3") != "e4m3" or config.get("expert_dtype", "fp8") != "fp8":
        raise _refused(f"fmt is {config.get('fmt')!r}, expert_dtype {config.get('expert_dtype')!r}")
    return Published("fp8", *_block(block)) if block else Published("fp8", None, None)


def _compressed_tensors(config: Mapping[str, Any]) -> Published:
    """All groups of layers must be kept alike."""
    for key in ("kv_cache_scheme", "transform_config"):
        if config.get(key):
            raise _refused(f"{key} is {config[key]!r}")
    sparsity = (config.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise _refused(f"sparsity_config has the format {sparsity!r}")
    groups = list((config.get("config_groups") or {}).values())
    kinds = {_of_group(group, group.get("format") or config.get("format")) for group in groups}
    if len(kinds) != 1:
        raise _refused(f"config_groups has {len(kinds)} kinds of matrices")
    return kinds.pop()


def _of_group(group: Mapping[str, Any], kept: object) -> Published:
    weights, activations = group.get("weights") or {}, group.get("input_activations")
    if kept not in _FORMATS:
        raise _refused(f"format is {kept!r}")
    kind, plain = weights.get("type", "int"), weights.get("symmetric", True) and not weights.get("dynamic")
    if weights.get("num_bits") != 8 or kind not in ("int", "float") or not plain or weights.get("actorder"):
        raise _refused(f"weights are {dict(weights)}")
    block = _block_of(weights)
    if activations is None or (kind == "float" and activations.get("dynamic") is True):
        return Published("int8" if kind == "int" else "fp8", *block)
    token = activations.get("dynamic") is True and activations.get("strategy") == "token"
    if not token or activations.get("num_bits") != 8 or not activations.get("symmetric", True) or block[1] is not None:
        raise _refused(f"input_activations are {dict(activations)}, weights {dict(weights)}")
    return Published("w8a8", *block)


def _block_of(weights: Mapping[str, Any]) -> tuple[int | None, int | None]:
    match weights.get("strategy", "tensor"):
        case "tensor":
            return None, None
        case "channel":
            return 1, None
        case "group" if isinstance(size := weights.get("group_size"), int) and size > 0:
            return 1, size
        case "block":
            return _block(weights.get("block_structure"))
    raise _refused(f"weights are {dict(weights)}")


def _block(sizes: object) -> tuple[int, int]:
    """`[128, 128]`, or, in older files, "128x128"."""
    if isinstance(sizes, str):
        sizes = [int(size) if size.isdigit() else 0 for size in sizes.split("x")]
    if isinstance(sizes, Sequence) and len(sizes) == 2 and all(isinstance(size, int) and size > 0 for size in sizes):
        return sizes[0], sizes[1]
    raise _refused(f"the block of a scale is {sizes!r}")


def _refused(what: str) -> CheckpointError:
    return CheckpointError(f"config.json: quantization_config is not supported: {what}; {_KNOWN}")
