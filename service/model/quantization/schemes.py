"""The 8-bit schemes of a layer's weights, and the schemes of published files. Needs no torch.

`quantization_config` of config.json says how published weights are kept. Two methods are read: `compressed-tensors`
(llm-compressor's) and `fp8` (Qwen3's and DeepSeek's). A weight in the files is in 8 bits if it has a scale beside it.
Formats: github.com/vllm-project/compressed-tensors, and transformers' `FineGrainedFP8Config`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from service.errors import CheckpointError, SettingsError


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """How numbers are kept in 8 bits. `dtype`: torch's name of the 8-bit type. `largest`: its largest number.

    A layer's input is quantized, too, each row (a token) with a scale of its own.
    """

    name: str
    dtype: str
    largest: float


QUANT_SCHEMES = {
    scheme.name: scheme
    for scheme in (
        QuantScheme("fp8", "float8_e4m3fn", 448.0),
        QuantScheme("w8a8", "int8", 127.0),
    )
}

#: layers with quantized weights: the layers of attention and feed-forwards, and MRP's first
_QUANTIZED_LAYERS = frozenset({"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "eh_proj", "experts"})


def is_quantized(parameter: str) -> bool:
    """Whether a scheme quantizes a parameter such as `layers.0.mlp.down_proj.weight`. Biases stay wide."""
    path, _, leaf = parameter.rpartition(".")
    return leaf != "bias" and path.rpartition(".")[2] in _QUANTIZED_LAYERS


def scheme_named(name: str) -> QuantScheme:
    """The scheme of a name. SettingsError if there is none."""
    if name not in QUANT_SCHEMES:
        raise SettingsError(
            f"quantization is {name!r}, allowed are {', '.join(map(repr, QUANT_SCHEMES))}", param="quantization"
        )
    return QUANT_SCHEMES[name]


def chosen_scheme(published: str | None, requested: str | None) -> str | None:
    """The scheme of the files, or the requested one, or None. SettingsError if both are there and differ."""
    if published is not None and requested not in (None, published):
        raise SettingsError(
            f"quantization is {requested!r}, but this checkpoint's files have 8-bit matrices, which are served as "
            f"{published!r}: allowed are {published!r} and none",
            param="quantization",
        )
    return published or requested


def scales_per_row(depth: int, columns: int | None) -> int:
    """The number of scales of a row of `depth` numbers. `columns`: the numbers that share a scale; None: all.

    Groups are equally wide.
    """
    width = depth if columns is None else min(columns, depth)
    return depth // gcd(width, depth)


def activation_parts(name: str | None, ranks: int) -> int:
    """The number of parts of an activation that ranks quantize apart, each with scales of its own.

    1 without a scheme: the ranks then have the numbers of a single device, up to the order of sums.
    """
    return 1 if name is None else ranks


# --- schemes of published files --------------------------------------------------------------------

#: the supported schemes, for errors
_SUPPORTED = (
    "read are compressed-tensors of 8 bits, symmetric (int: weights alone, or with dynamic activations of 8 bits a "
    "token; float: weights alone or with dynamic activations) and fp8 with dynamic activations"
)
#: formats of compressed-tensors whose weights are read
_FORMATS = ("int-quantized", "pack-quantized", "float-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True)
class PublishedScheme:
    """How a checkpoint's files keep 8-bit weights."""

    scheme: str  # the name of the scheme whose 8-bit type the weights have
    rows: int | None  # the rows of a matrix that share a scale; None: all
    columns: int | None  # and the columns
    widened: bool = False  # whether layers get wide matrices, as no scheme computes with wide activations


def published_scheme(raw: Mapping[str, Any]) -> PublishedScheme | None:
    """The scheme in a parsed config.json; None for wide weights. CheckpointError for a format that is not read."""
    config = raw.get("quantization_config") or raw.get("compression_config")
    if not config:
        return None
    method = config.get("quant_method") if isinstance(config, Mapping) else config
    if method == "fp8":
        return _fp8(config)
    if method == "compressed-tensors":
        return _compressed_tensors(config)
    raise _not_supported(f"quant_method is {method!r}")


def _fp8(config: Mapping[str, Any]) -> PublishedScheme:
    block = config.get("weight_block_size")
    if config.get("activation_scheme", "dynamic") != "dynamic":
        raise _not_supported(f"activation_scheme is {config['activation_scheme']!r}")
    if config.get("fmt", "e4m3") != "e4m3" or config.get("expert_dtype", "fp8") != "fp8":
        raise _not_supported(f"fmt is {config.get('fmt')!r}, expert_dtype {config.get('expert_dtype')!r}")
    return PublishedScheme("fp8", *_block_size(block)) if block else PublishedScheme("fp8", None, None)


def _compressed_tensors(config: Mapping[str, Any]) -> PublishedScheme:
    """All groups of layers must have one scheme."""
    for key in ("kv_cache_scheme", "transform_config"):
        if config.get(key):
            raise _not_supported(f"{key} is {config[key]!r}")
    sparsity = _part(config, "sparsity_config").get("format", "dense")
    if sparsity != "dense":
        raise _not_supported(f"sparsity_config has the format {sparsity!r}")
    parts = _part(config, "config_groups")
    groups = [_part(parts, name) for name in parts]
    schemes = {_group_scheme(group, group.get("format") or config.get("format")) for group in groups}
    if len(schemes) != 1:
        raise _not_supported(f"config_groups has {len(schemes)} kinds of matrices")
    return schemes.pop()


def _group_scheme(group: Mapping[str, Any], file_format: object) -> PublishedScheme:
    weights = _part(group, "weights")
    activations = None if group.get("input_activations") is None else _part(group, "input_activations")
    if file_format not in _FORMATS:
        raise _not_supported(f"format is {file_format!r}")
    kind, plain = weights.get("type", "int"), weights.get("symmetric", True) and not weights.get("dynamic")
    if weights.get("num_bits") != 8 or kind not in ("int", "float") or not plain or weights.get("actorder"):
        raise _not_supported(f"weights are {dict(weights)}")
    block = _scale_block(weights)
    if kind == "float" and (activations is None or activations.get("dynamic") is True):
        return PublishedScheme("fp8", *block)
    if activations is None:
        return PublishedScheme("w8a8", *block, widened=True)
    token = activations.get("dynamic") is True and activations.get("strategy") == "token"
    if not token or activations.get("num_bits") != 8 or not activations.get("symmetric", True) or block[1] is not None:
        raise _not_supported(f"input_activations are {dict(activations)}, weights {dict(weights)}")
    return PublishedScheme("w8a8", *block)


def _part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object of a key; empty for none."""
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise _not_supported(f"{key} is {value!r}")
    return value or {}


def _scale_block(weights: Mapping[str, Any]) -> tuple[int | None, int | None]:
    match weights.get("strategy", "tensor"):
        case "tensor":
            return None, None
        case "channel":
            return 1, None
        case "group" if isinstance(size := weights.get("group_size"), int) and size > 0:
            return 1, size
        case "block":
            return _block_size(weights.get("block_structure"))
    raise _not_supported(f"weights are {dict(weights)}")


def _block_size(sizes: object) -> tuple[int, int]:
    """`[128, 128]`, or, in older files, "128x128"."""
    if isinstance(sizes, str):
        sizes = [int(size) if size.isdigit() else 0 for size in sizes.split("x")]
    if isinstance(sizes, Sequence) and len(sizes) == 2 and all(isinstance(size, int) and size > 0 for size in sizes):
        return sizes[0], sizes[1]
    raise _not_supported(f"the block of a scale is {sizes!r}")


def _not_supported(problem: str) -> CheckpointError:
    return CheckpointError(f"config.json: quantization_config is not supported: {problem}; {_SUPPORTED}")
