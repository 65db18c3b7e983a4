"""The model families: one file for each, and one line here."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.errors import CheckpointError
from service.model.config import ModelConfig
from service.model.families.keys import refuse_other_networks, unread_keys
from service.model.families.llada2_moe import Llada2Moe
from service.model.families.qwen3 import ModelFamily
from service.model.families.sdar import Sdar, SdarMoe
from service.model.quantization.schemes import published_scheme

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
    family, rope = family_named(raw.get("model_type")), raw.get("rope_parameters")
    if isinstance(rope, Mapping) and raw.get("partial_rotary_factor") is None:  # transformers 5 writes it there
        raw = {**raw, "partial_rotary_factor": rope.get("partial_rotary_factor")}
    refuse_other_networks(raw, family.own_keys)
    config, published = family.config(raw, block_size), published_scheme(raw)
    return replace(config, quantization=published.scheme, scale_columns=published.columns) if published else config


def unknown_keys(raw: Mapping[str, Any]) -> list[str]:
    """The keys of a parsed config.json that nothing reads, and of which nothing is known."""
    return unread_keys(raw, family_named(raw.get("model_type")).own_keys)
