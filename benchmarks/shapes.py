"""The shapes of the published models, and random weights in any shape.

Text of random weights is noise, and MRP's drafts are accepted by chance only. `inflated.py` makes weights of a
published shape that answer as a small checkpoint does.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from service.errors import InvalidRequest
from service.model import Backbone, Checkpoint, LoadOptions, Mrp, parse_config


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model, as in the published config.json files."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 8
    head_dim: int = 128
    vocab_size: int = 151936
    max_position_embeddings: int = 32768


@dataclass(frozen=True, slots=True)
class ExpertsShape(Shape):
    """Sizes of a model with experts in every layer."""

    model_type: str = "sdar_moe"
    num_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768
    norm_topk_prob: bool = True


@dataclass(frozen=True, slots=True)
class Llada2Shape(Shape):
    """Sizes of LLaDA2: a dense layer, then layers with experts in groups and a shared one."""

    model_type: str = "llada2_moe"
    num_experts: int = 256
    num_experts_per_tok: int = 8
    n_group: int = 8
    topk_group: int = 4
    moe_intermediate_size: int = 512
    num_shared_experts: int = 1
    first_k_dense_replace: int = 1
    routed_scaling_factor: float = 2.5
    partial_rotary_factor: float = 0.5
    use_bias: bool = False


@dataclass(frozen=True, slots=True)
class StableDiffcoderShape(Shape):
    """Sizes of Stable-DiffCoder, whose layers are Llama's."""

    model_type: str = "stable_diffcoder"


@dataclass(frozen=True, slots=True)
class FastDllmShape(Shape):
    """Sizes of Fast-dLLM v2, whose layers are Qwen2.5's."""

    model_type: str = "Fast_dLLM_Qwen"
    tie_word_embeddings: bool = False


#: SDAR's, LLaDA2's, Stable-DiffCoder's, Fast-dLLM's, and Qwen3's smallest for machines on which those take too long
SHAPES = {
    "qwen3-0.6b": Shape(1024, 3072, 28, 16),
    "sdar-1.7b": Shape(2048, 6144, 28, 16),
    "sdar-4b": Shape(2560, 9728, 36, 32),
    "sdar-8b": Shape(4096, 12288, 36, 32),
    "sdar-30b-a3b": ExpertsShape(2048, 6144, 48, 32, 4),
    "llada2-mini": Llada2Shape(2048, 5120, 20, 16, 4, vocab_size=157184),
    "stable-diffcoder-8b": StableDiffcoderShape(4096, 14336, 32, 32, vocab_size=155136, max_position_embeddings=8192),
    "fast-dllm-1.5b": FastDllmShape(1536, 8960, 28, 12, 2, tie_word_embeddings=True),
    "fast-dllm-7b": FastDllmShape(3584, 18944, 28, 28, 4, vocab_size=152064),
}


def shape_named(name: str) -> Shape:
    """A published shape. InvalidRequest for a name that is none."""
    if name not in SHAPES:
        raise InvalidRequest(f"shape is {name!r}, allowed are {', '.join(SHAPES)}", param="shape")
    return SHAPES[name]


def random_checkpoint(raw: dict[str, Any], options: LoadOptions) -> Checkpoint:
    """A checkpoint with random weights, made on the device; nothing is written to disk."""
    config = parse_config(raw, block_size=options.block_size)
    torch.manual_seed(0)
    with torch.device(options.device):
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(options.dtype)
        try:
            backbone = Backbone(config)
            mrp = Mrp(config, config.mrp) if config.mrp else None
        finally:
            torch.set_default_dtype(dtype)
    for module in (backbone, mrp):
        if module is not None:
            module.to(device=options.device, dtype=options.dtype).eval().requires_grad_(False)
    return Checkpoint(Path("random"), config, raw, backbone, mrp)
