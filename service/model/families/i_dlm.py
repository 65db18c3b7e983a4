"""I-DLM: Qwen3's weights and causal mask, trained to draft at masks, such as I-DLM-8B. Source: arXiv 2604.11035.

The output at a position predicts the next token, at a mask, too. So the outputs at masks behind a text draft the tokens
after the next one. The published config.json says `sdar`, and perhaps `use_regular_causal`; its `block_size` is the
number of masks in training. The size of our blocks, which are pages, is free. Source of the decoding: `idlm_blockN.py`
of thuEcstasy/I-DLM, commit 3342a17.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.errors import CheckpointError
from service.model.config import ModelConfig
from service.model.families import qwen3

#: the tokens of a page unless a user says otherwise, and the masks in training of the published 8B model
_BLOCK_SIZE, _DRAFT_MASKS = 8, 3


class IDlm(qwen3.ModelFamily):
    """The family `i_dlm`, whose layers are dense. `block_size` in config.json is the number of masks in training."""

    own_keys = frozenset({"use_regular_causal"})

    def config(self, raw: Mapping[str, Any], block_size: int | None) -> ModelConfig:
        if raw.get("num_nextn_predict_layers"):
            raise CheckpointError("config.json: num_nextn_predict_layers is not 0: a causal model has no MRP")
        draft_masks = qwen3.optional(raw, "block_size", _DRAFT_MASKS, 128, least=1)
        keys = {key: value for key, value in raw.items() if key not in ("block_size", *self.own_keys)}
        return replace(qwen3.read_config(keys, block_size or _BLOCK_SIZE), draft_masks=draft_masks)
