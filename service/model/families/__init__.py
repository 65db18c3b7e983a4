"""The model families: one file for each, and one line here."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.errors import CheckpointError
from service.model.config import ModelConfig
from service.model.families.fast_dllm import FastDllm
from service.model.families.i_dlm import IDlm
from service.model.families.keys import refuse_other_networks, unread_keys
from service.model.families.llada2_moe import Llada2Moe
from service.model.families.qwen3 import ModelFamily
from service.model.families.sdar import Sdar, SdarMoe
from service.model.families.stable_diffcoder import StableDiffcoder
from service.model.quantization.schemes import published_scheme

#: `model_type` in config.json -> the family
FAMILIES: Mapping[str, ModelFamily] = {
    "sdar": Sdar(),
    "sdar_moe": SdarMoe(),
    "llada2_moe": Llada2Moe(),
    "stable_diffcoder": StableDiffcoder(),
    "Fast_dLLM_Qwen": FastDllm(),
    "i_dlm": IDlm(),
}


def family_name(raw: Mapping[str, Any]) -> str:
    """The family of a parsed config.json, by `model_type`, by its own architecture, or by the key of causal models.

    CheckpointError, which names the families, if there is none.
    """
    kind, listed = raw.get("model_type"), raw.get("architectures")
    architectures = listed if isinstance(listed, list) else []
    if kind == "sdar" and raw.get("use_regular_causal"):
        kind = "i_dlm"
    for name, family in FAMILIES.items():
        if name == kind or (family.architecture is not None and family.architecture in architectures):
            return name
    raise CheckpointError(f"config.json: model_type is {kind!r}, supported are {', '.join(sorted(FAMILIES))}")


def parse_config(raw: Mapping[str, Any], *, block_size: int | None = None) -> ModelConfig:
    """The config of a parsed config.json.

    `block_size` overrides the checkpoint's (the published 4B MRP says 4 and was trained with 16).
    Raises CheckpointError naming the key that is missing or not supported.
    """
    name, rope = family_name(raw), raw.get("rope_parameters")
    if isinstance(rope, Mapping) and raw.get("partial_rotary_factor") is None:  # transformers 5 writes it there
        raw = {**raw, "partial_rotary_factor": rope.get("partial_rotary_factor")}
    refuse_other_networks(raw, FAMILIES[name].own_keys)
    config, published = FAMILIES[name].config({**raw, "model_type": name}, block_size), published_scheme(raw)
    if published is None or published.widened:
        return config
    return replace(config, quantization=published.scheme, scale_columns=published.columns)


def unknown_keys(raw: Mapping[str, Any]) -> list[str]:
    """The keys of a parsed config.json that nothing reads, and of which nothing is known."""
    return unread_keys(raw, FAMILIES[family_name(raw)].own_keys)
