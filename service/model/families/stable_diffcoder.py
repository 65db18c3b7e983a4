"""Stable-DiffCoder: Llama's layers under a block-causal mask, such as ByteDance-Seed/Stable-DiffCoder-8B-Instruct.

config.json says `model_type: llama`; the architecture tells the family. A masked position's own logits say its token.
Source: the published `modeling_stable_diffcoder.py`, and transformers' `modeling_llama`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.model.config import ModelConfig
from service.model.families import qwen3

#: the published loop's defaults; config.json has no such keys
_DEFAULTS: Mapping[str, Any] = {"block_size": 4, "mask_token_id": 5}


class StableDiffcoder(qwen3.ModelFamily):
    """The family `stable_diffcoder`. Weights have Llama's names, which are Qwen3's but for norms of heads."""

    architecture = "StableDiffcoderForCausalLM"

    def config(self, raw: Mapping[str, Any], block_size: int | None) -> ModelConfig:
        keys = {**_DEFAULTS, **{key: value for key, value in raw.items() if value is not None}}
        return replace(qwen3.read_config(keys, block_size), qk_norm=False)
