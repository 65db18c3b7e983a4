"""Chains of noisy states, on which the paper trains MRP: random masks, then true tokens revealed at random.

The other kind of states is in rollout.py: those that decoding passes through.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from service.model import Backbone
from training.layout import Layout
from training.rollout import EndIds, Step, Trajectory, backbone_logits, look, masked_positions, pick


@dataclass(frozen=True, slots=True)
class Noise:
    """`copies`: chains in one forward. `reveals`: from state to state, 1 to so many tokens of a block are revealed.

    `inverse_rate`: the published noise. A chain of an example has one mask rate p, and its positions weigh 1 / p.
    Otherwise each block has a rate, and all positions weigh 1.
    """

    copies: int
    reveals: int
    inverse_rate: bool = False


#: the lowest published mask rate of an example, `eps` of `forward_add_noise_packed` in modeling_sdar_mrp.py
_LOWEST_RATE = 1e-3


@torch.no_grad()
def noisy_chains(
    backbone: Backbone, opened: Trajectory, noise: Noise, applications: int, end_id: EndIds
) -> tuple[list[list[Step]], list[Tensor], Tensor]:
    """Chains of `applications` + 1 states.

    Beside them: the positions at which each application is compared, and the weight of every position, all
    `[B, copies * N]`. The published noise has no positions after an answer's end, so none is compared.
    """
    batch, copies = opened.batch, noise.copies
    answer = batch.answer.repeat(1, copies)
    rate = _rates(batch.layout, len(answer), noise)
    masks = answer & (torch.rand(answer.shape) < rate)
    states = []
    for depth in range(applications + 1):
        if depth:
            masks = masks & ~_revealed(masks, batch.layout.block, noise.reveals)
        states.append(_state(backbone, opened, masks, copies, end_id))
    chains = [list(chain) for chain in zip(*(step for step, _ in states), strict=True)]
    where = [masked & answer if noise.inverse_rate else masked for _, masked in states[1:]]
    return chains, where, 1 / rate if noise.inverse_rate else torch.ones(rate.shape)


def _rates(layout: Layout, rows: int, noise: Noise) -> Tensor:
    """The mask rate of every position, `[rows, copies * N]`."""
    if noise.inverse_rate:
        drawn = _LOWEST_RATE + (1 - _LOWEST_RATE) * torch.rand(rows, noise.copies)
        return drawn.repeat_interleave(layout.noisy, 1)
    return torch.rand(rows, noise.copies * layout.blocks).repeat_interleave(layout.block, 1)


def _revealed(masks: Tensor, block: int, most: int) -> Tensor:
    """1 to `most` random masks of every block, `[B, T]`."""
    draws = torch.rand(masks.shape).masked_fill(~masks, -1.0).unflatten(1, (-1, block))
    rank = draws.argsort(-1, descending=True).argsort(-1)
    count = torch.randint(1, most + 1, (*draws.shape[:2], 1))
    revealed: Tensor = (rank < count).flatten(1) & masks
    return revealed


def _state(
    backbone: Backbone, opened: Trajectory, masks: Tensor, copies: int, end_id: EndIds
) -> tuple[list[Step], Tensor]:
    """The state of every copy, and the masked positions of all copies, `[B, copies * N]`."""
    batch, layout, steps, masked_of_copies = opened.batch, opened.batch.layout, [], []
    parts = [batch.masked(mask) for mask in masks.chunk(copies, 1)]
    hidden = look(backbone, opened, torch.cat(parts, 1), copies)
    for tokens, seen in zip(parts, hidden.chunk(copies, 1), strict=True):
        masked = masked_positions(tokens, batch, end_id)
        logits = backbone_logits(backbone, layout.outputs(seen), batch.mask_id)
        position, token = pick(logits, layout.readable(masked), layout.block)
        steps.append(Step(tokens, seen, position, token, masked.unflatten(1, (-1, layout.block)).any(-1)))
        masked_of_copies.append(masked)
    return steps, torch.cat(masked_of_copies, 1)
