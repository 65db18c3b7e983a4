"""Whether the weights are a causal model's: the loss of a text as the service reads it, and as a causal model does.

Look-alikes of SDAR have its `model_type` and its names of weights, but their output at a position is the next token. In
config.json nothing need tell that (I-DLM's training template has no such key). Of a causal family the opposite is
asked. `mrp-serve check` calls this.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from service.model.checkpoint import Checkpoint
from service.model.layers import Attend

#: plain English, longer than `_LENGTH` tokens
TEXT = (
    "The old lighthouse stood at the end of the harbour, and every evening its keeper climbed the stairs to light the "
    "lamp. He had done this for thirty years, in summer and in winter, and he knew the name of every ship that came "
    "home. One night there was a storm, the wind broke a window, and the lamp went out. So he took a small lantern, "
    "went outside and stood in the rain until the last boat had found its way."
)
_LENGTH = 64
#: one of so many tokens is masked: a block's other tokens are seen
_STRIDE = 4
#: nats. A block-causal model sees more of a text in blocks, so it has no advantage when read causally
_ADVANTAGE = 2.0


class TextLosses(NamedTuple):
    """Mean losses of the same tokens in nats: as masks under the block mask, read causally, and by chance.

    Where a block-causal family's outputs are shifted, a mask is read at the position before it, which is a mask, too:
    there a causal model's output says nothing.
    """

    block: float
    causal: float
    chance: float

    @property
    def is_causal(self) -> bool:
        """Whether the model knows the text only when it is read causally. An untrained model knows it in no way."""
        return self.causal < self.chance / 2 < self.block and self.block > self.causal + _ADVANTAGE

    @property
    def is_block_causal(self) -> bool:
        """Whether the model knows the text only in blocks."""
        return TextLosses(self.causal, self.block, self.chance).is_causal


@torch.inference_mode()
def text_losses(checkpoint: Checkpoint, token_ids: list[int]) -> TextLosses | None:
    """The losses of a text's first tokens. None if the tokenizer cannot write the text: few tokens differ."""
    config, backbone = checkpoint.config, checkpoint.backbone
    tokens = [token for token in token_ids if token < config.vocab_size][: min(_LENGTH, config.max_positions)]
    if (size := len(tokens)) < _LENGTH // 2 or len(set(tokens)) < size // 4:
        return None
    size = size // config.block_size * config.block_size or size  # routers of some models read whole blocks
    clean = torch.tensor(tokens[:size], device=checkpoint.device)
    positions = torch.arange(size, device=checkpoint.device)
    scored = positions[positions % _STRIDE == _STRIDE // 2]
    shift = int(config.shifted and not config.causal)
    masked = clean.index_fill(0, torch.cat([scored - shift, scored]), config.mask_token_id)
    readings, attend = torch.cat([clean, masked, clean]), _attend(_seen(positions, config.block_size))
    hidden = backbone(readings[None], positions.repeat(3)[None], attend)[0]
    states = hidden[size + scored - shift], hidden[2 * size + scored - 1]  # of masks, and of the tokens before them
    block, causal = (F.cross_entropy(backbone.logits(state).float(), clean[scored]).item() for state in states)
    return TextLosses(block, causal, math.log(config.vocab_size))


def _seen(positions: Tensor, block_size: int) -> Tensor:
    """What is seen of a text `[T]` that is read in blocks, in blocks with masks, and causally. -> `[3 T, 3 T]`."""
    blocks = positions // block_size
    earlier, same = blocks[:, None] > blocks, blocks[:, None] == blocks
    before, none = positions[:, None] >= positions, torch.zeros_like(same)
    rows = ((earlier | same, none, none), (earlier, same, none), (none, none, before))
    return torch.cat([torch.cat(row, 1) for row in rows])


def _attend(seen: Tensor) -> Attend:
    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # noqa: ARG001 - the same in all layers
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).transpose(1, 2).flatten(2)

    return attend
