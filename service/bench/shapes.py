"""Random weights in the shapes of the published models: for timings where no checkpoint can be had.

Their text is noise and MRP's drafts are accepted by chance only, so rates of static decoding and the times of
steps mean something, tokens per forward do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from service.errors import InvalidRequest
from service.model import Checkpoint, LoadOptions, Mrp, Sdar, parse_config

_COMMON = {
    "model_type": "sdar", "block_size": 4, "head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151936,
    "mask_token_id": 151669, "eos_token_id": 151643, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "num_mrp_heads": 1, "num_nextn_predict_layers": 3,
}  # fmt: skip

#: name -> (hidden, intermediate, layers, heads), as in the published config.json files
SHAPES = {
    "sdar-1.7b": (2048, 6144, 28, 16),
    "sdar-4b": (2560, 9728, 36, 32),
    "sdar-8b": (4096, 12288, 36, 32),
}


def config_of(shape: str) -> dict[str, Any]:
    """A config.json of the shape. InvalidRequest for a name that is none."""
    if shape not in SHAPES:
        raise InvalidRequest(f"shape is {shape!r}, allowed are {', '.join(SHAPES)}", param="shape")
    hidden, intermediate, layers, heads = SHAPES[shape]
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate}
    return _COMMON | sizes | {"num_hidden_layers": layers, "num_attention_heads": heads}


def random_checkpoint(raw: dict[str, Any], options: LoadOptions) -> Checkpoint:
    """A checkpoint with random weights, made on the device; nothing is written to disk."""
    config = parse_config(raw, block_size=options.block_size)
    torch.manual_seed(0)
    with torch.device(options.device):
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(options.dtype)
        try:
            backbone, mrp = Sdar(config), Mrp(config, config.mrp) if config.mrp else None
        finally:
            torch.set_default_dtype(dtype)
    for module in (backbone, mrp):
        if module is not None:
            module.to(device=options.device, dtype=options.dtype).eval().requires_grad_(False)
    return Checkpoint(Path("random"), config, raw, backbone, mrp)
