"""The model families: one file for each, and one line here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from service.errors import CheckpointError
from service.model.config import ModelConfig
from service.model.families.llada2_moe import Llada2Moe
from service.model.families.sdar import Sdar
from service.model.families.sdar_moe import SdarMoe
from service.model.quantization import published_scheme
from service.model.weight_mapping import WeightMapping

if TYPE_CHECKING:
    from service.model.backbone import Backbone


class ModelFamily(Protocol):
    """Reads config.json, builds the network, and knows the published names of its weights.

    A family's module imports torch only in `network`: config files are read without it.
    """

    def config(self, raw: Mapping[str, Any], block_size: int | None) -> ModelConfig:
        """The config of a parsed config.json. `block_size` overrides the checkpoint's.

        Raises CheckpointError naming the key that is missing or not supported.
        """

    def network(self, config: ModelConfig) -> Backbone:
        """The backbone with fresh weights, on torch's default device and in its default dtype."""

    def weight_mappings(self, config: ModelConfig, parameter: str) -> Sequence[WeightMapping]:
        """The published weights that make a parameter of the backbone. `config`: of the rank that has the parameter.

        Files may have any of several mappings; the first is written.
        """


#: `model_type` in config.json -> the family
FAMILIES: Mapping[str, ModelFamily] = {"sdar": Sdar(), "sdar_moe": SdarMoe(), "llada2_moe": Llada2Moe()}


def family_named(name: object) -> ModelFamily:
    """The family of a `model_type`. CheckpointError, which names the families, if there is none."""
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise CheckpointError(f"config.json: model_type is {name!r}, supported are {', '.join(sorted(FAMILIES))}")
    return family


def parse_config(raw: Mapping[str, Any], *, block_size: int | None = None) -> ModelConfig:
    """The config of a parsed config.json.

    `block_size` overrides the checkpoint's (the published 4B MRP says 4 and was trained with 16).
    Raises CheckpointError naming the key that is missing or not supported.
    """
    config, published = family_named(raw.get("model_type")).config(raw, block_size), published_scheme(raw)
    return replace(config, quantization=published.scheme, scale_columns=published.columns) if published else config
