"""A model family, and the keys of config.json and names of weights of Qwen3's layers. Needs no torch.

The keys are Qwen3's, SDAR's `block_size` and `mask_token_id`, and SDAR-MRP's (`num_nextn_predict_layers`, `mrp_…`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from service.errors import CheckpointError
from service.model.config import ExpertsConfig, ModelConfig, MrpConfig
from service.model.weight_mapping import (
    COLUMNS,
    ROWS,
    ShardDim,
    WeightMapping,
    WeightSlice,
    prefixed,
    stacked,
)

DEFAULT_BLOCK_SIZE = 4
DEFAULT_MASK_TOKEN_ID = 151669

#: the keys of config.json about the module, beside its number of layers
_MRP_KEYS = ("mrp_residual", "mrp_scale", "mrp_default_steps")
#: keys that the published training scripts name, for modules that the published code cannot make
_REFUSED_KEYS = {
    "mrp_input_layer_offset": "the output of an earlier layer as the module's input is not supported",
    "mrp_drop_residual": "a module without a residual has `mrp_residual: false`",
}

#: keys of causal models that call themselves `sdar`, and are more than the family `i_dlm` (UNO, arXiv 2609.04010)
_CAUSAL_KEYS = ("use_relay", "noise")

_KV_HEADS = ShardDim(0, kv_heads=True)
#: the most layers, heads or experts, and numbers of a layer's side. With more, torch would raise errors of its own
_MAX_LAYERS, MAX_COUNT, _MAX_WIDTH = 1024, 2**14, 2**20
#: the most tokens of the vocabulary, positions of the rotary table, and the largest epsilon of norms
_MAX_VOCABULARY, _MAX_POSITIONS, _MAX_EPSILON = 2**24, 2**22, 1.0
#: the largest factor of an output, and base of the rotary table: beyond them numbers are not finite
MAX_SCALE, _MAX_THETA = 1000.0, 1e15
#: types of weights that config.json may name. The setting `dtype` decides
_DTYPES = frozenset(
    {"auto", "bfloat16", "double", "float", "float16", "float32", "float64", "float8_e4m3fn", "half", "int8"}
)


class ModelFamily:
    """Reads config.json, and knows the published names of the network's weights. By default both are Qwen3's.

    `own_keys`: the keys of config.json that it reads beside Qwen3's (`keys.py`). `architecture`: what tells the family
    where the published `model_type` is another model's; else None.
    """

    own_keys: frozenset[str] = frozenset()
    architecture: str | None = None

    def config(self, raw: Mapping[str, Any], block_size: int | None) -> ModelConfig:
        """The config of a parsed config.json. `block_size` overrides the checkpoint's.

        Raises CheckpointError naming the key that is missing or not supported.
        """
        return read_config(raw, block_size)

    def weight_mappings(self, config: ModelConfig, parameter: str) -> Sequence[WeightMapping]:
        """The published weights that make a parameter of the backbone. Files may have any of several mappings.

        The first one is written. `config`: the config of the rank that has the parameter.
        """
        return [backbone_weights(config, parameter)]


def read_config(raw: Mapping[str, Any], block_size: int | None, experts: ExpertsConfig | None = None) -> ModelConfig:
    """A `ModelConfig` from a parsed config.json. CheckpointError as in `ModelFamily.config`."""
    raw = {"max_position_embeddings": 32768} | {key: value for key, value in raw.items() if value is not None}
    _refuse_unsupported(raw)
    heads = positive(raw, "num_attention_heads", MAX_COUNT)
    kv_heads = optional(raw, "num_key_value_heads", heads)
    if kv_heads < 1 or heads % kv_heads:
        raise CheckpointError(f"config.json: {heads} attention heads are not a multiple of {kv_heads} key-value heads")
    hidden = positive(raw, "hidden_size")
    head_dim = optional(raw, "head_dim", hidden // heads, MAX_COUNT)
    if head_dim < 2 or head_dim % 2:
        raise CheckpointError(f"config.json: head_dim is {head_dim}, expected an even number")
    vocab = positive(raw, "vocab_size", _MAX_VOCABULARY)
    mask = optional(raw, "mask_token_id", DEFAULT_MASK_TOKEN_ID)
    if not 0 <= mask < vocab:
        raise CheckpointError(f"config.json: mask_token_id {mask} is outside the vocabulary of {vocab}")
    block = block_size or optional(raw, "block_size", DEFAULT_BLOCK_SIZE)
    if not 1 <= block <= 128:
        raise CheckpointError(f"block size {block} is not supported: allowed are 1 to 128")
    positions = positive(raw, "max_position_embeddings", _MAX_POSITIONS)
    if positions < block:
        raise CheckpointError(f"config.json: max_position_embeddings is {positions}, less than a block of {block}")
    ends = _token_ids(raw.get("eos_token_id"), vocab)
    if mask in ends:
        raise CheckpointError(f"config.json: mask_token_id is {mask}, which eos_token_id says is an end token")
    thetas = (raw.get("rope_theta"), _rope(raw, "rope_parameters").get("rope_theta"))
    return ModelConfig(
        family=str(raw["model_type"]),
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=positive(raw, "intermediate_size"),
        num_layers=positive(raw, "num_hidden_layers", _MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block,
        mask_token_id=mask,
        eos_token_ids=ends,
        max_positions=positions,
        rope_theta=finite(
            "rope_theta", next((theta for theta in thetas if theta is not None), 10000.0), 1.0, _MAX_THETA
        ),
        rms_norm_eps=finite("rms_norm_eps", raw.get("rms_norm_eps", 1e-6), most=_MAX_EPSILON),
        tie_word_embeddings=flag(raw, "tie_word_embeddings", default=False),
        mrp=_mrp(raw, block),
        experts=experts,
    )


def backbone_weights(config: ModelConfig, parameter: str) -> list[WeightSlice]:
    """The published weights that make a parameter of a backbone."""
    weights = module_weights(config, parameter)
    return weights if parameter.startswith("lm_head.") else prefixed("model.", weights)


def module_weights(config: ModelConfig, parameter: str) -> list[WeightSlice]:
    """The published weights that make a parameter of a module of Qwen3's layers, such as MRP, without a prefix.

    A fused matrix is several weights in files.
    """
    if "qkv_proj" in parameter:
        names = (parameter.replace("qkv_proj", part) for part in ("q_proj", "k_proj", "v_proj"))
        return stacked((name, *shard) for name, shard in zip(names, qkv_shards(config), strict=True))
    if "gate_up_proj" in parameter:
        halves = (parameter.replace("gate_up_proj", part) for part in ("gate_proj", "up_proj"))
        return stacked((name, config.intermediate_size, ROWS) for name in halves)
    return [WeightSlice(parameter, shards=(COLUMNS,) if "o_proj" in parameter or "down_proj" in parameter else ())]


def qkv_shards(config: ModelConfig) -> tuple[tuple[int, ShardDim], ...]:
    """How the fused matrices of queries, keys and values are sharded."""
    keys = (config.num_kv_heads * config.head_dim, _KV_HEADS)
    return ((config.num_heads * config.head_dim, ROWS), keys, keys)


def expert_weights(experts: ExpertsConfig, parameter: str) -> list[WeightSlice]:
    """The published weights that make a parameter of a layer's experts, if files have one for each expert."""
    folder, _, leaf = parameter.rpartition(".")
    slices = list[WeightSlice]()
    for expert in range(experts.num_experts):
        name = f"{folder}.{expert}"
        if leaf == "gate_up_proj":
            halves = (f"{name}.gate_proj.weight", f"{name}.up_proj.weight")
            slices += stacked([(half, experts.intermediate_size, ROWS) for half in halves], (expert,))
        else:
            slices.append(WeightSlice(f"{name}.{leaf}.weight", (expert,), (COLUMNS,)))
    return prefixed("model.", slices)


def _mrp(raw: Mapping[str, Any], block_size: int) -> MrpConfig | None:
    layers = optional(raw, "num_nextn_predict_layers", 0, _MAX_LAYERS, least=0)
    modules = optional(raw, "num_mrp_heads", 1 if layers else 0)
    if not layers or not modules:
        return None
    if modules != 1:
        raise CheckpointError(f"config.json: num_mrp_heads is {modules}, only 1 is supported")
    for key in sorted(key for key in raw if key.startswith("mrp_") and key not in _MRP_KEYS):
        if key not in _REFUSED_KEYS:  # it would change the module's output, and nothing reads it
            raise CheckpointError(f"config.json: {key} is not known, known are {', '.join(_MRP_KEYS)}")
        if raw[key]:
            raise CheckpointError(f"config.json: {key} is {raw[key]!r}: {_REFUSED_KEYS[key]}")
    steps = optional(raw, "mrp_default_steps", min(2, block_size))
    if not 1 <= steps <= block_size:
        raise CheckpointError(f"config.json: mrp_default_steps is {steps}, allowed are 1 to {block_size}")
    return MrpConfig(
        num_layers=layers,
        residual=flag(raw, "mrp_residual", default=True),
        scale=factor("mrp_scale", raw.get("mrp_scale", 1.0)),
        default_steps=steps,
    )


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    for key in _CAUSAL_KEYS:
        if raw.get(key):
            raise CheckpointError(
                f"config.json: {key} is {raw[key]!r}: a causal model with shifted logits, as UNO is; "
                "of causal models only those of the family i_dlm are supported"
            )
    for key in ("attention_bias", "use_sliding_window"):
        if raw.get(key):
            raise CheckpointError(f"config.json: {key} is true, which is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"config.json: hidden_act is {raw['hidden_act']!r}, only 'silu' is supported")
    for key in ("torch_dtype", "dtype"):
        if (dtype := raw.get(key)) is not None and str(dtype).removeprefix("torch.") not in _DTYPES:
            raise CheckpointError(f"config.json: {key} is {dtype!r}, known are {', '.join(sorted(_DTYPES))}")
    _refuse_layers_that_differ(raw)


def _refuse_layers_that_differ(raw: Mapping[str, Any]) -> None:
    """Refuses other rotations than the default, and kinds of layers."""
    for key in ("rope_scaling", "rope_parameters"):
        kind = _rope(raw, key)
        if any(isinstance(value, Mapping) for value in kind.values()):
            raise CheckpointError(f"config.json: {key} differs by the kind of layer, which is not supported")
        if (name := kind.get("rope_type", kind.get("type", "default"))) != "default":
            raise CheckpointError(f"config.json: rope type {name!r} is not supported, only 'default' is")
    kinds = raw.get("layer_types", [])
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise CheckpointError(f"config.json: layer_types is {kinds!r}, supported are only layers of 'full_attention'")


def _rope(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise CheckpointError(f"config.json: {key} is {value!r}, expected an object")
    return value or {}


def finite(key: str, value: object, above: float = 0.0, most: float = math.inf) -> float:
    """Checks that a value is a finite number above `above` and up to `most`, and no text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not above < value <= most or value == math.inf:
        limits = (f" above {above:g}" if above else "") + ("" if most == math.inf else f" up to {most:g}")
        raise CheckpointError(f"config.json: {key} is {value!r}, expected a positive number{limits}")
    return float(value)


def factor(key: str, value: object) -> float:
    """Checks that a value is a factor that leaves numbers finite, and not all zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < abs(value) <= MAX_SCALE:
        limits = f"from {-MAX_SCALE:g} to {MAX_SCALE:g} and not 0"
        raise CheckpointError(f"config.json: {key} is {value!r}, expected a finite number {limits}")
    return float(value)


def flag(raw: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """The value of an optional key that is true or false."""
    value = default if raw.get(key) is None else raw[key]
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json: {key} is {value!r}, expected true or false")
    return value


def positive(raw: Mapping[str, Any], key: str, most: int = _MAX_WIDTH) -> int:
    """The value of a required key, an integer from 1 to `most`."""
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"config.json: {key} is {value!r}, expected a positive integer")
    return _limited(key, value, most)


def optional(
    raw: Mapping[str, Any], key: str, default: int, most: int = _MAX_WIDTH, *, least: int = -_MAX_WIDTH
) -> int:
    """The value of an optional key, an integer from `least` to `most`."""
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise CheckpointError(f"config.json: {key} is {value!r}, expected an integer")
    if value < least:
        raise CheckpointError(f"config.json: {key} is {value}, expected at least {least}")
    return _limited(key, value, most)


def _limited(key: str, value: int, most: int) -> int:
    if value > most:
        raise CheckpointError(f"config.json: {key} is {value}, supported are up to {most}")
    return value


def _token_ids(value: object, vocab: int) -> tuple[int, ...]:
    """The end tokens, each within the vocabulary."""
    token_ids: list[Any] = [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
    for token in token_ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise CheckpointError(f"config.json: eos_token_id is {value!r}, expected an integer or a list of integers")
        if not 0 <= token < vocab:
            raise CheckpointError(f"config.json: eos_token_id {token} is outside the vocabulary of {vocab}")
    return tuple(token_ids)
