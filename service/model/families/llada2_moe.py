"""LLaDA2: Qwen3-like layers with shared experts and a grouped router, such as inclusionAI/LLaDA2.1-mini.

Half of each head is rotated. A masked position's own logits say its token. Files have a weight for each expert, or, as
inclusionAI's trainer merges them, a weight for each projection of all experts. Source: the published
`modeling_llada2_moe.py` (inclusionAI/dFactory).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from service.errors import CheckpointError
from service.model.config import ExpertsConfig, GroupsConfig, ModelConfig, PoolConfig
from service.model.families import qwen3
from service.model.weight_mapping import ShardDim, WeightMapping, WeightSlice, prefixed, stacked

#: the published code's defaults for keys that config.json leaves out
_DEFAULTS: Mapping[str, Any] = {
    "block_size": 32,
    "mask_token_id": 156895,
    "eos_token_id": 156892,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "num_experts_per_tok": 2,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "partial_rotary_factor": 0.5,
}
#: the only values for which `network` computes the same as the published code
_REQUIRED: Mapping[str, Any] = {
    "use_bias": False,
    "use_qkv_bias": False,
    "use_qk_norm": True,
    "use_rmsnorm": True,
    "norm_head": False,
    "norm_topk_prob": True,
    "score_function": "sigmoid",
}
_EDIT_KEYS = ("delete_token_id", "split_token_id")
#: our names -> the published ones
_NAMES: Mapping[str, str] = {
    "embed_tokens.": "word_embeddings.",
    "self_attn.qkv_proj.": "attention.query_key_value.",
    "self_attn.o_proj.": "attention.dense.",
    "self_attn.q_norm.": "attention.query_layernorm.",
    "self_attn.k_norm.": "attention.key_layernorm.",
}


class Llada2Moe(qwen3.ModelFamily):
    """The family `llada2_moe`. MRP's layers, if there are any, are Qwen3's, with the same rotation."""

    own_keys = frozenset(
        {
            *_DEFAULTS,
            *_REQUIRED,
            *_EDIT_KEYS,
            "expert_capacity",
            "first_k_dense_replace",
            "moe_intermediate_size",
            "num_shared_experts",
        }
    )

    def config(self, raw: Mapping[str, Any], block_size: int | None) -> ModelConfig:
        keys = {**_DEFAULTS, **{key: value for key, value in raw.items() if value not in (None, [])}}
        for key, required in _REQUIRED.items():
            if keys.get(key, required) != required:
                raise CheckpointError(f"config.json: {key} is {keys[key]!r}, only {required!r} is supported")
        config = qwen3.read_config(keys, block_size, _experts(keys))
        pool = config.experts and config.experts.limit
        if isinstance(pool, PoolConfig) and config.block_size != pool.block_size:
            raise CheckpointError(
                f"block size {block_size} is not supported: the router was trained for blocks of {pool.block_size}"
            )
        return replace(
            config,
            rotary_dim=_rotary_dim(keys["partial_rotary_factor"], config.head_dim),
            edit_token_ids=_edit_tokens(keys, config),
        )

    def weight_mappings(self, config: ModelConfig, parameter: str) -> Sequence[WeightMapping]:
        experts = config.experts
        if experts is None or ".mlp." not in parameter:
            return [_renamed(config, parameter)]
        if ".experts." in parameter:
            return [qwen3.expert_weights(experts, parameter), _merged(experts, parameter)]
        if ".shared_experts." in parameter:
            config = replace(config, intermediate_size=experts.shared_size)
        slices = qwen3.backbone_weights(config, parameter)
        return [[part._replace(exact=part.name.endswith("expert_bias")) for part in slices]]


def _renamed(config: ModelConfig, parameter: str) -> WeightMapping:
    """The mapping of a parameter outside feed-forwards. Queries, keys and values are one weight in files, too."""
    if "qkv_proj" in parameter:
        shards = tuple(shard._replace(size=size) for size, shard in qwen3.qkv_shards(config))
        slices = prefixed("model.", [WeightSlice(parameter, shards=shards)])
    else:
        slices = qwen3.backbone_weights(config, parameter)
    for name, published in _NAMES.items():
        slices = [part._replace(name=part.name.replace(name, published)) for part in slices]
    return slices


def _merged(experts: ExpertsConfig, parameter: str) -> WeightMapping:
    """`gate_proj` and `up_proj` `[E, I, H]`, `down_proj` `[E, H, I]`."""
    folder, _, leaf = parameter.rpartition(".")
    if leaf == "down_proj":
        return prefixed("model.", [WeightSlice(parameter, shards=(ShardDim(2),))])
    halves = [(f"{folder}.{name}", experts.intermediate_size, ShardDim(1)) for name in ("gate_proj", "up_proj")]
    return prefixed("model.", stacked(halves, (slice(None),)))


def _experts(raw: Mapping[str, Any]) -> ExpertsConfig:
    num_experts, per_token = (
        qwen3.positive(raw, "num_experts", qwen3.MAX_COUNT),
        qwen3.positive(raw, "num_experts_per_tok"),
    )
    inner = qwen3.positive(raw, "moe_intermediate_size")
    shared = qwen3.optional(raw, "num_shared_experts", 0, qwen3.MAX_COUNT, least=0)
    first = qwen3.optional(raw, "first_k_dense_replace", 0, least=0)
    return ExpertsConfig(
        num_experts=num_experts,
        per_token=per_token,
        intermediate_size=inner,
        layers=frozenset(range(first, qwen3.positive(raw, "num_hidden_layers"))),
        normalized=per_token > 1,
        shared_size=shared * inner,
        limit=_pool(raw, num_experts, per_token) or _groups(raw, num_experts, per_token),
    )


def _pool(raw: Mapping[str, Any], num_experts: int, per_token: int) -> PoolConfig | None:
    """The pool of LLaDA2.2's blocks. Its config.json still has the groups of LLaDA2.1, which nothing reads."""
    capacity = qwen3.optional(raw, "expert_capacity", 0, qwen3.MAX_COUNT, least=0)
    if not capacity:
        return None
    if not per_token <= capacity <= num_experts:
        raise CheckpointError(f"config.json: expert_capacity is {capacity}, allowed are {per_token} to {num_experts}")
    return PoolConfig(capacity, qwen3.positive(raw, "block_size"), _scale(raw))


def _groups(raw: Mapping[str, Any], num_experts: int, per_token: int) -> GroupsConfig:
    groups = GroupsConfig(qwen3.positive(raw, "n_group"), qwen3.positive(raw, "topk_group"), _scale(raw))
    if num_experts % groups.num_groups or num_experts < 2 * groups.num_groups:
        raise CheckpointError(
            f"config.json: n_group is {groups.num_groups}, expected a divisor of the {num_experts} experts that leaves "
            "at least two in a group"
        )
    if groups.per_token > groups.num_groups:
        raise CheckpointError(f"config.json: topk_group is {groups.per_token}, allowed are 1 to {groups.num_groups}")
    in_groups = num_experts // groups.num_groups * groups.per_token
    if per_token > in_groups:
        raise CheckpointError(
            f"config.json: num_experts_per_tok is {per_token}, allowed are 1 to {in_groups}: "
            f"{groups.per_token} of {groups.num_groups} groups have so many experts"
        )
    return groups


def _scale(raw: Mapping[str, Any]) -> float:
    return qwen3.factor("routed_scaling_factor", raw["routed_scaling_factor"])


def _edit_tokens(raw: Mapping[str, Any], config: ModelConfig) -> tuple[int, int] | None:
    """The tokens of LLaDA2.2 that delete a position and split one. None if config.json has neither."""
    if all(raw.get(key) is None for key in _EDIT_KEYS):
        return None
    delete, split = (qwen3.optional(raw, key, -1, config.vocab_size - 1, least=0) for key in _EDIT_KEYS)
    if delete == split or {-1, config.mask_token_id, *config.eos_token_ids} & {delete, split}:
        raise CheckpointError(
            f"config.json: delete_token_id is {raw.get(_EDIT_KEYS[0])} and split_token_id {raw.get(_EDIT_KEYS[1])}, "
            "expected two tokens that are neither the mask token nor an end token"
        )
    return delete, split


def _rotary_dim(factor: object, head_dim: int) -> int:
    """The number of rotated numbers of a head."""
    size = int(head_dim * factor) if isinstance(factor, int | float) and 0 < factor <= 1 else 0
    if size < 2 or size % 2:
        raise CheckpointError(
            f"config.json: partial_rotary_factor is {factor!r}, expected a share of head_dim {head_dim} that is even"
        )
    return size
