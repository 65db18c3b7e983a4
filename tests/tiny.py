"""Random models small enough to run thousands of forwards in a test, and the golden ones."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from service.model import Backbone, Checkpoint, LoadOptions, Mrp, load_checkpoint, parse_config

GOLDEN = Path(__file__).resolve().parent / "golden"
GOLDEN_NAMES = ("sdar-mrp-random-a", "sdar-mrp-random-b", "sdar-mrp-random-c")
#: the one with experts and without MRP
EXPERTS_NAME = "sdar-moe-random-b"
#: LLaDA2's, written and decoded by the published code, without MRP
LLADA2_NAME = "llada2-moe-random-d"
#: LLaDA2.2's, with a router by block and edit tokens
LLADA22_NAME = "llada2-moe-random-g"
#: Stable-DiffCoder's, with MRP
DIFFCODER_NAME = "stable-diffcoder-random-e"
#: Fast-dLLM v2's, with MRP
FAST_DLLM_NAME = "fast-dllm-random-f"
#: I-DLM's, trained a little, so that drafts are accepted
I_DLM_NAME = "i-dlm-trained-g"
#: a checkpoint of each kind of network
ALL_NAMES = (*GOLDEN_NAMES, EXPERTS_NAME, LLADA2_NAME, LLADA22_NAME, DIFFCODER_NAME, FAST_DLLM_NAME, I_DLM_NAME)


#: what makes `tiny_config` one with experts: a dense layer, then one of six experts
EXPERTS: dict[str, Any] = {
    "model_type": "sdar_moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "mlp_only_layers": [0],
}


#: what makes `tiny_config` LLaDA2 with blocks of 32: a dense layer, then one of eight experts and a shared one
LLADA2: dict[str, Any] = {
    "model_type": "llada2_moe",
    "block_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 16,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "partial_rotary_factor": 0.5,
    "use_bias": False,
    "num_nextn_predict_layers": 0,
}


#: what makes `tiny_config` Stable-DiffCoder, with MRP
DIFFCODER: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["StableDiffcoderForCausalLM"],
    "rope_theta": 500000.0,
    "mlp_bias": False,
}


#: what makes `tiny_config` Fast-dLLM v2, with MRP: blocks of 8 in sub-blocks of 4, and a tied head
FAST_DLLM: dict[str, Any] = {
    "model_type": "Fast_dLLM_Qwen",
    "architectures": ["Fast_dLLM_QwenForCausalLM"],
    "block_size": None,
    "bd_size": 8,
    "small_block_size": 4,
    "tie_word_embeddings": True,
}


#: what makes `tiny_config` I-DLM, which has no MRP: three masks in training, and pages of 8 tokens
I_DLM: dict[str, Any] = {"use_regular_causal": True, "block_size": 3, "num_nextn_predict_layers": 0}


@cache
def golden(name: str, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """A golden checkpoint. Tests share it, so none may change its weights."""
    return load_checkpoint(GOLDEN / name, LoadOptions(dtype=dtype))


def tiny_config(**changes: Any) -> dict[str, Any]:
    """A config.json in the published layout; None takes a key out."""
    raw: dict[str, Any] = {
        "architectures": ["SDARMRPForCausalLM"],
        "model_type": "sdar",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "block_size": 4,
        "mask_token_id": 60,
        "eos_token_id": 61,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "num_mrp_heads": 1,
        "num_nextn_predict_layers": 1,
    }
    return {key: value for key, value in (raw | changes).items() if value is not None}


def tiny_checkpoint(
    seed: int = 0, dtype: torch.dtype = torch.float64, page_size: int | None = None, **changes: Any
) -> Checkpoint:
    """A random model in memory. In float64 two ways to compute the same never decide differently.

    `page_size`: the size of blocks of a causal model, which config.json does not name.
    """
    raw = tiny_config(**changes)
    config = parse_config(raw, block_size=page_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = Backbone(config)
        mrp = Mrp(config, config.mrp) if config.mrp else None
        for module in (backbone, mrp):
            for name, parameter in module.named_parameters() if module else ():
                scale = 0.3 if "norm" in name else 3.0 * parameter.shape[-1] ** -0.5
                torch.nn.init.normal_(parameter, mean=float("norm" in name), std=scale)
        if mrp is not None:  # small, so that MRP corrects the backbone and does not replace it
            torch.nn.init.normal_(mrp.norm.weight, std=0.3)
    if mrp is not None:
        mrp.to(dtype).eval().requires_grad_(False)
    backbone.to(dtype).eval().requires_grad_(False)
    return Checkpoint(path=Path("tiny"), config=config, raw=raw, backbone=backbone, mrp=mrp)
