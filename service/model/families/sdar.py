"""SDAR and SDAR-MoE: Qwen3's or Qwen3-MoE's layers under a block-causal mask. Source: SDAR (arXiv 2510.06303).

Files of SDAR-MoE, such as JetLM/SDAR-30B-A3B-Chat, have a weight for each expert. Or they have one for all experts of a
layer, as transformers 5 has them in memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from service.errors import CheckpointError
from service.model.config import ExpertsConfig, ModelConfig
from service.model.families import qwen3
from service.model.weight_mapping import ShardDim, WeightMapping, WeightSlice, prefixed


class Sdar(qwen3.ModelFamily):
    """The family `sdar`, whose layers are dense."""

    def config(self, raw: Mapping[str, Any], block_size: int | None) -> ModelConfig:
        if raw.get("num_experts") or raw.get("num_local_experts"):
            raise CheckpointError("config.json: model_type 'sdar' has no experts, 'sdar_moe' has")
        return super().config(raw, block_size)


class SdarMoe(qwen3.ModelFamily):
    """The family `sdar_moe`. MRP's layers are dense, of `intermediate_size`."""

    own_keys = frozenset(
        {"decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob", "num_experts_per_tok"}
        | {"shared_expert_intermediate_size"}
    )

    def config(self, raw: Mapping[str, Any], block_size: int | None) -> ModelConfig:
        return qwen3.read_config(raw, block_size, _experts(raw))

    def weight_mappings(self, config: ModelConfig, parameter: str) -> Sequence[WeightMapping]:
        if config.experts is None or ".experts." not in parameter:
            return super().weight_mappings(config, parameter)
        half = ShardDim(1, size=config.experts.intermediate_size)  # `[E, 2 I, H]`, gate before up; or `[E, H, I]`
        shards = (half, half) if parameter.endswith("gate_up_proj") else (ShardDim(2),)
        fused = WeightSlice(parameter, shards=shards)
        return [qwen3.expert_weights(config.experts, parameter), prefixed("model.", [fused])]


def _experts(raw: Mapping[str, Any]) -> ExpertsConfig:
    key = "num_local_experts" if raw.get("num_experts") is None else "num_experts"
    num_experts = qwen3.positive(raw, key, qwen3.MAX_COUNT)
    per_token = qwen3.positive(raw, "num_experts_per_tok")
    if per_token > num_experts:
        raise CheckpointError(f"config.json: num_experts_per_tok is {per_token}, allowed are 1 to {num_experts}")
    if raw.get("shared_expert_intermediate_size"):
        raise CheckpointError("config.json describes a shared expert, which is not supported")
    inner, normalized = qwen3.positive(raw, "moe_intermediate_size"), qwen3.flag(raw, "norm_topk_prob", default=False)
    return ExpertsConfig(num_experts, per_token, inner, _sparse_layers(raw), normalized)


def _sparse_layers(raw: Mapping[str, Any]) -> frozenset[int]:
    """The layers with experts: every `decoder_sparse_step`-th, except `mlp_only_layers`."""
    step, dense = qwen3.optional(raw, "decoder_sparse_step", 1, least=1), raw.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise CheckpointError(f"config.json: mlp_only_layers is {dense!r}, expected a list of integers")
    layers = range(qwen3.positive(raw, "num_hidden_layers"))
    return frozenset(layer for layer in layers if (layer + 1) % step == 0 and layer not in dense)
