"""Static decodes of all answer blocks at once, as examples for MRP.

Every block is decoded after its true clean prefix, one position per step, by the most confident pick, exactly as
`static` decodes. Two neighbouring steps of a trajectory are one example: the input is the hidden states of step `i`
and the tokens of step `i+1`, the target is the hidden states of step `i+1`.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from service.model import Backbone
from training.attention import BlockAttention, DenseAttention, Prefix
from training.batch import Batch

#: One end token, or several as `[n]`.
EndIds = int | Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """A state of all blocks, the backbone's hidden states, and the next pick of every block.

    `tokens` `[B, N]`. `hidden` `[B, N, H]`. `position` `[B, blocks]`: the picked position in the row. `token`
    `[B, blocks]`: the picked token. `open` `[B, blocks]`: False where the block's answer was already complete.
    """

    tokens: Tensor
    hidden: Tensor
    position: Tensor
    token: Tensor
    open: Tensor


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The decoding of a batch. `clean_hidden` `[B, clean, H]`: the backbone's hidden states of the clean part.

    `prefix`: its keys and values.
    """

    batch: Batch
    clean_hidden: Tensor
    prefix: Prefix
    steps: tuple[Step, ...]


def pick(logits: Tensor, masked: Tensor, block: int, sampled: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The most confident masked position of each block, and its token, both `[B, blocks]`.

    logits `[B, N, V]`, with -inf for the mask token; masked `[B, N]`. Rows marked in `sampled` `[B]` draw their tokens
    instead of taking the likeliest ones.
    """
    chances = logits.softmax(-1)
    sure, likeliest = chances.max(-1)
    inner = sure.masked_fill(~masked, -1).unflatten(1, (-1, block)).argmax(-1)
    position = inner + torch.arange(inner.shape[1]) * block
    token = likeliest.gather(1, position)
    if sampled is not None:
        there = chances.take_along_dim(position[..., None], 1).flatten(0, 1)
        token = torch.where(sampled[:, None], torch.multinomial(there, 1).view_as(token), token)
    return position, token


def masked_positions(tokens: Tensor, batch: Batch, end_id: EndIds) -> Tensor:
    """The positions still to decode `[B, N]`: masks without an end token of the answer before them in their block.

    The block in which the answer begins may hold an end token of the prompt. That token does not count.
    """
    decoded = batch.answer | batch.tail
    ends: Tensor = (torch.isin(tokens, end_id) & decoded).unflatten(1, (-1, batch.layout.block))
    behind: Tensor = (ends.cumsum(-1) > 0).flatten(1)
    return (tokens == batch.mask_id) & ~behind


def backbone_logits(backbone: Backbone, hidden: Tensor, mask_id: int) -> Tensor:
    """hidden `[..., H]` -> fp32 logits `[..., V]` that cannot choose the mask token."""
    logits: Tensor = backbone.logits(hidden).float()
    logits[..., mask_id] = -torch.inf
    return logits


@torch.no_grad()
def open_batch(backbone: Backbone, batch: Batch) -> Trajectory:
    """A trajectory without steps, for which the clean part has been computed."""
    layout = batch.layout
    clean = DenseAttention(layout.clean_mask)
    clean_hidden = backbone(batch.clean, layout.clean_positions, clean)
    return Trajectory(batch, clean_hidden, clean.layers, ())


@torch.no_grad()
def roll_out(backbone: Backbone, batch: Batch, end_id: EndIds, sampled_share: float = 0.0) -> Trajectory:
    """Decodes every answer block. `sampled_share`: share of the rows that sample their tokens."""
    layout, opened = batch.layout, open_batch(backbone, batch)
    tokens = batch.masked(batch.answer)
    sampled = torch.rand(len(tokens)) < sampled_share
    steps = []
    for _ in range(layout.block):
        hidden = look(backbone, opened, tokens)
        masked, outputs = masked_positions(tokens, batch, end_id), layout.outputs(hidden)
        logits = backbone_logits(backbone, outputs, batch.mask_id)
        position, token = pick(logits, layout.readable(masked), layout.block, sampled)
        still = masked.unflatten(1, (-1, layout.block)).any(-1)
        steps.append(Step(tokens, hidden, position, token, still))
        if not still.any():
            break
        tokens = tokens.scatter(1, position, torch.where(still, token, tokens.gather(1, position)))
    return replace(opened, steps=tuple(steps))


@torch.no_grad()
def look(backbone: Backbone, trajectory: Trajectory, tokens: Tensor, copies: int = 1) -> Tensor:
    """The backbone's hidden states of `tokens` in the trajectory: `[B, copies * N]` -> `[B, copies * N, H]`."""
    layout = trajectory.batch.layout
    attend = BlockAttention(layout.reads(copies), layout.block, trajectory.prefix)
    hidden: Tensor = backbone(tokens, layout.positions(copies), attend)
    return hidden
