"""The names of an inflated checkpoint's weights: Qwen3's, in which `inflate.py` computes, and the family's own."""

from __future__ import annotations

from collections.abc import Mapping

from service.model import ModelConfig, family_named
from service.model.families import qwen3

MRP = "mrp_modules.0.model."
_ATTENTION = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
    "self_attn.k_norm",
)  # fmt: skip
_NORMS = ("input_layernorm", "post_attention_layernorm")
_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
#: parameters that a family may publish otherwise than Qwen3 does: of a layer, and of the backbone
_OTHERWISE = ("qkv_proj", "o_proj", "q_norm", "k_norm")


def sources_of(config: ModelConfig) -> Mapping[str, list[str]]:
    """Published name of every weight -> Qwen3's names of the weights that lie behind each other in it."""
    sources = {name: [name] for name in _names(config)}
    layers = (f"layers.{number}.self_attn.{leaf}.weight" for number in range(config.num_layers) for leaf in _OTHERWISE)
    for parameter in ("embed_tokens.weight", *layers):
        own = [part.name for part in qwen3.backbone_weights(config, parameter)]
        published = [part.name for part in family_named(config.family).weight_mappings(config, parameter)[0]]
        if published != own:
            [name] = published  # the parameter is one weight
            sources = {known: parts for known, parts in sources.items() if known not in own} | {name: own}
    return sources


def _names(config: ModelConfig) -> list[str]:
    """Qwen3's names, in the order of a forward."""
    layers = [("model.", number) for number in range(config.num_layers)]
    names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    if config.mrp:
        layers += [(MRP, number) for number in range(config.mrp.num_layers)]
        names += [f"{MRP}{leaf}.weight" for leaf in ("enorm", "hnorm", "eh_proj", "norm")]
    for prefix, number in layers:
        layer = f"{prefix}layers.{number}."
        names += [f"{layer}{leaf}.weight" for leaf in (*_NORMS, *_ATTENTION)]
        names += [f"{layer}mlp.{leaf}" for leaf in _of_a_feed_forward(config, prefix, number)]
    return names


def _of_a_feed_forward(config: ModelConfig, prefix: str, layer: int) -> list[str]:
    experts = config.experts
    if prefix == MRP or experts is None or layer not in experts.layers:
        return [f"{leaf}.weight" for leaf in _FEED_FORWARD]
    folders = [f"experts.{number}." for number in range(experts.number)]
    folders += ["shared_experts."] if experts.shared_size else []
    router = ["gate.weight"] + (["gate.expert_bias"] if experts.groups else [])
    return router + [f"{folder}{leaf}.weight" for folder in folders for leaf in _FEED_FORWARD]
