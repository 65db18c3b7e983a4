"""The demo's config.json and its checkpoint."""

from copy import deepcopy
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from service.model import Backbone, Mrp, save_checkpoint
from training.demo.tokenizer import END, MASK, PAD, control, save_tokenizer

SIZES = {
    "block_size": 8, "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32,
}  # fmt: skip


def shape(tokenizer: Tokenizer, layers: int) -> dict[str, Any]:
    """The config.json of a backbone without MRP. `layers`: of the backbone."""
    end = control(tokenizer, END)
    return {
        "architectures": ["SDARMRPForCausalLM"],
        "model_type": "sdar",
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": control(tokenizer, PAD),
        "hidden_act": "silu",
        "mask_token_id": control(tokenizer, MASK),
        "max_position_embeddings": 1024,
        "num_hidden_layers": layers,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "use_sliding_window": False,
        "vocab_size": tokenizer.get_vocab_size(),
        **SIZES,
    }


def export(path: Path, raw: dict[str, Any], models: tuple[Backbone, Mrp | None], tokenizer: Tokenizer) -> None:
    """Writes a servable checkpoint: weights in half precision, config, tokenizer with chat template."""
    backbone, mrp = models
    save_checkpoint(path, raw, deepcopy(backbone).half(), deepcopy(mrp).half() if mrp else None)
    save_tokenizer(tokenizer, path)
