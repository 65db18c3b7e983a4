"""The keys of config.json that no family reads. Some would change the network, most change nothing. Needs no torch."""

from collections.abc import Mapping
from typing import Any

from service.errors import CheckpointError

#: keys that every family reads
_READ = frozenset(
    {
        "attention_bias", "block_size", "dtype", "eos_token_id", "head_dim", "hidden_act", "hidden_size",
        "intermediate_size", "layer_types", "mask_token_id", "max_position_embeddings", "model_type",
        "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "num_mrp_heads",
        "num_nextn_predict_layers", "quantization_config", "rms_norm_eps", "rope_parameters", "rope_scaling",
        "rope_theta", "tie_word_embeddings", "torch_dtype", "use_sliding_window", "vocab_size",
    }
)  # fmt: skip
#: keys of published checkpoints that change nothing, or nothing that the weights' names do not say
_WITHOUT_EFFECT = frozenset(
    {
        "architectures", "attention_dropout", "attn_implementation", "auto_map", "bos_token_id", "debug",
        "embedding_dropout", "ep_size", "fuse_cross_entropy", "initializer_range", "max_window_layers",
        "micro_forward", "moe_router_enable_expert_bias", "num_experts", "num_local_experts", "output_dropout",
        "output_router_logits", "pad_token_id", "pretraining_tp", "rotary_dim", "router_aux_loss_coef",
        "router_dtype", "skip_checkpoint", "sliding_window", "transformers_version", "use_cache", "use_deepep",
        "using_split_qkv_in_self_attention",
    }
)  # fmt: skip
#: keys that would change the network -> the values with which they do not
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("mlp_bias", "use_bias", "use_qkv_bias", "norm_head", "norm_softmax"), (False,)),
    **dict.fromkeys(("alibi", "attn_temperature_tuning", "parallel_attn", "use_parallel_residual"), (False,)),
    **dict.fromkeys(("qk_layernorm", "use_qk_norm", "use_rmsnorm"), (True,)),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct", "routed_scaling_factor", "n_group", "topk_group"), (1,)),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "scale_depth", "scale_emb"), (1,)),
    **dict.fromkeys(("logit_scale", "logits_scaling"), (1,)),
    "expert_capacity": (0,),  # the experts that a block's tokens share, of LLaDA2.2's router
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "attention_multiplier", "clip_qkv"), ()),
    **dict.fromkeys(("attention_chunk_size", "no_rope_layers", "query_pre_attn_scalar"), ()),
    **dict.fromkeys(("score_function", "scoring_func"), ("softmax",)),
    "hidden_activation": ("silu",),
}


def refuse_other_networks(raw: Mapping[str, Any], family_keys: frozenset[str]) -> None:
    """CheckpointError that names a key of another network. `family_keys`: those that the family reads."""
    for key, neutral in _NEUTRAL.items():
        value = raw.get(key)
        if value is not None and key not in family_keys and value not in neutral:
            raise CheckpointError(f"config.json: {key} is {value!r}, a part of a network that is not supported")


def unread_keys(raw: Mapping[str, Any], family_keys: frozenset[str]) -> list[str]:
    """The keys that nothing reads and of which nothing is known. `family_keys` as above."""
    names = _READ | _WITHOUT_EFFECT | _NEUTRAL.keys() | family_keys
    return sorted(key for key in raw if key not in names and not key.startswith(("_", "mrp_")))
