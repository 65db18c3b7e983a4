"""Fast-dLLM v2: Qwen2.5's layers under a block-causal mask, such as Efficient-Large-Model/Fast_dLLM_v2_7B.

The output at a position predicts the next token, as in Qwen2.5. So a block's first token comes from the block before
it. A forward reveals tokens of the leftmost sub-block with masks only. Source: the published `modeling.py`, and
transformers' `modeling_qwen2`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.errors import CheckpointError
from service.model.config import ModelConfig
from service.model.families import qwen3

#: the published code's defaults; config.json has the first only, as `bd_size`
_DEFAULTS: Mapping[str, Any] = {"block_size": 32, "small_block_size": 8, "mask_token_id": 151665}


class FastDllm(qwen3.ModelFamily):
    """The family `Fast_dLLM_Qwen`. Weights have Qwen2's names: Qwen3's but for norms of heads, and biases."""

    own_keys = frozenset({"bd_size", "small_block_size"})

    def config(self, raw: Mapping[str, Any], block_size: int | None) -> ModelConfig:
        present = {key: value for key, value in raw.items() if value is not None}
        keys = {**_DEFAULTS, **({"block_size": present["bd_size"]} if "bd_size" in present else {}), **present}
        config = qwen3.read_config(keys, block_size)
        sub_block = min(qwen3.positive(keys, "small_block_size"), config.block_size)
        if config.block_size % sub_block:
            raise CheckpointError(
                f"config.json: small_block_size is {sub_block}, expected a divisor of the block size "
                f"{config.block_size}"
            )
        return replace(config, qk_norm=False, qkv_bias=True, sub_block_size=sub_block)
