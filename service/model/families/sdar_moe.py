"""SDAR-MoE: Qwen3-MoE's layers under a block-causal mask, such as JetLM/SDAR-30B-A3B-Chat.

Published are a weight for each expert, or, as transformers 5 has them in memory, all experts of a layer in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from service.errors import CheckpointError
from service.model.config import ExpertsConfig, ModelConfig
from service.model.families import qwen3
from service.model.layout import COLUMNS, ROWS, Cut, Layout, Part, prefixed, stacked

if TYPE_CHECKING:
    from torch import nn

    from service.model.backbone import Backbone

#: of all experts in one: `[E, 2 I, H]`, the gates' matrices before the ups', and `[E, H, I]`
_FUSED = {"gate_up_proj": Cut(1, stacked=2), "down_proj": Cut(2)}


class SdarMoe:
    """The family `sdar_moe`. MRP's layers are dense, of `intermediate_size`."""

    def config(self, raw: Mapping[str, Any], block_size: int | None) -> ModelConfig:
        """Qwen3's keys and Qwen3-MoE's."""
        return qwen3.read_config(raw, block_size, _experts(raw))

    def network(self, config: ModelConfig) -> Backbone:
        """Layers with experts, and dense ones where the config says so."""
        from service.model.experts import SparseFeedForward
        from service.model.layers import FeedForward
        from service.model.transformer import Transformer

        experts, hidden = config.experts, config.hidden_size

        def feed_forward(layer: int) -> nn.Module:
            if experts is not None and layer in experts.layers:
                return SparseFeedForward(hidden, experts)
            return FeedForward(hidden, config.intermediate_size)

        return Transformer(config, feed_forward)

    def layouts(self, config: ModelConfig, parameter: str) -> Sequence[Layout]:
        """Qwen3's names; of experts each by itself, or all in one."""
        folder, _, leaf = parameter.rpartition(".")
        if config.experts is None or not folder.endswith(".experts"):
            return [qwen3.of_backbone(config, parameter)]
        each: list[Part] = []
        for number in range(config.experts.number):
            name, inner = f"{folder}.{number}", config.experts.intermediate_size
            if leaf == "gate_up_proj":
                halves = [(f"{name}.gate_proj.weight", inner, ROWS), (f"{name}.up_proj.weight", inner, ROWS)]
                each += stacked(halves, (number,))
            else:
                each.append(Part(f"{name}.{leaf}.weight", (number,), COLUMNS))
        return [prefixed("model.", each), prefixed("model.", [Part(parameter, cut=_FUSED[leaf])])]


def _experts(raw: Mapping[str, Any]) -> ExpertsConfig:
    number = qwen3.positive(raw, "num_local_experts" if raw.get("num_experts") is None else "num_experts")
    per_token = qwen3.positive(raw, "num_experts_per_tok")
    if per_token > number:
        raise CheckpointError(f"config.json: num_experts_per_tok is {per_token}, allowed are 1 to {number}")
    if raw.get("shared_expert_intermediate_size"):
        raise CheckpointError("config.json describes a shared expert, which is not supported")
    inner, normalized = qwen3.positive(raw, "moe_intermediate_size"), bool(raw.get("norm_topk_prob", False))
    return ExpertsConfig(number, per_token, inner, _sparse_layers(raw), normalized)


def _sparse_layers(raw: Mapping[str, Any]) -> frozenset[int]:
    """The layers with experts: every `decoder_sparse_step`-th, but for `mlp_only_layers`."""
    step, dense = qwen3.optional(raw, "decoder_sparse_step", 1), raw.get("mlp_only_layers") or []
    if step < 1:
        raise CheckpointError(f"config.json: decoder_sparse_step is {step}, expected at least 1")
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise CheckpointError(f"config.json: mlp_only_layers is {dense!r}, expected a list of integers")
    layers = range(qwen3.positive(raw, "num_hidden_layers"))
    return frozenset(layer for layer in layers if (layer + 1) % step == 0 and layer not in dense)
