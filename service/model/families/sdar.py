"""SDAR: Qwen3's dense layers under a block-causal mask. Source: SDAR (arXiv 2510.06303)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from service.errors import CheckpointError
from service.model.config import ModelConfig
from service.model.families import qwen3
from service.model.weight_mapping import WeightMapping

if TYPE_CHECKING:
    from service.model.backbone import Backbone


class Sdar:
    """The family `sdar`."""

    def config(self, raw: Mapping[str, Any], block_size: int | None) -> ModelConfig:
        """Refuses experts, which are the family `sdar_moe`."""
        if raw.get("num_experts") or raw.get("num_local_experts"):
            raise CheckpointError("config.json: model_type 'sdar' has no experts, 'sdar_moe' has")
        return qwen3.read_config(raw, block_size)

    def network(self, config: ModelConfig) -> Backbone:
        """Every layer is dense."""
        from service.model.backbone import Transformer

        return Transformer(config)

    def weight_mappings(self, config: ModelConfig, parameter: str) -> Sequence[WeightMapping]:
        """Qwen3's names."""
        return [qwen3.backbone_weights(config, parameter)]
