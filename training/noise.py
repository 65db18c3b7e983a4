"""Chains of noisy states, on which the paper trains MRP: random masks, then true tokens revealed at random.

The other kind of states is in rollout.py: those that decoding passes through.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.model import Backbone
from training.rollout import EndIds, Step, Trajectory, backbone_logits, look, masked_positions, pick


@dataclass(frozen=True, slots=True)
class Noise:
    """`copies`: chains in one forward. `reveals`: from state to state, 1 to so many tokens of a block are revealed."""

    copies: int
    reveals: int


@torch.no_grad()
def noisy_chains(
    backbone: Backbone, opened: Trajectory, noise: Noise, applications: int, end_id: EndIds
) -> tuple[list[list[Step]], list[Tensor]]:
    """Chains of `applications` + 1 states, and the positions `[B, copies * N]` at which applications are compared."""
    batch, copies = opened.batch, noise.copies
    answer = batch.answer.repeat(1, copies)
    rate = torch.rand(len(answer), copies * batch.layout.blocks).repeat_interleave(batch.layout.block, 1)
    masks = answer & (torch.rand(answer.shape) < rate)
    states = []
    for depth in range(applications + 1):
        if depth:
            masks = masks & ~_revealed(masks, batch.layout.block, noise.reveals)
        states.append(_state(backbone, opened, masks, copies, end_id))
    chains = [list(chain) for chain in zip(*(step for step, _ in states), strict=True)]
    return chains, [masked for _, masked in states[1:]]


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
    batch, steps, places = opened.batch, [], []
    parts = [batch.masked(mask) for mask in masks.chunk(copies, 1)]
    hidden = look(backbone, opened, torch.cat(parts, 1), copies)
    for tokens, seen in zip(parts, hidden.chunk(copies, 1), strict=True):
        masked = masked_positions(tokens, batch, end_id)
        place, token = pick(backbone_logits(backbone, seen, batch.mask_id), masked, batch.layout.block)
        steps.append(Step(tokens, seen, place, token, masked.unflatten(1, (-1, batch.layout.block)).any(-1)))
        places.append(masked)
    return steps, torch.cat(places, 1)
