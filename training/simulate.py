"""Estimates the tokens per forward of speculative decoding from static trajectories.

Speculative decoding gives exactly static's output. Its rounds can therefore be counted from static's picks and from
the drafts that equal them. The estimate is fast and batched, for use during training. It uses the true earlier blocks.
Publish the engine's own count (`python -m benchmarks.evaluate`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from service.model import Backbone, Mrp
from training.batch import Batch
from training.chains import Rows
from training.rollout import EndIds, Step, Trajectory, backbone_logits, masked_positions, pick, roll_out

#: (tokens `[B, N]`, anchor `[B, N, H]`) -> the next anchor
Refine = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Yield:
    """Tokens and forwards of some decodes. `accepted`: the accepted drafts."""

    tokens: int
    forwards: int
    accepted: int = 0

    def __add__(self, other: Yield) -> Yield:
        return Yield(self.tokens + other.tokens, self.forwards + other.forwards, self.accepted + other.accepted)

    @property
    def per_forward(self) -> float:
        """Tokens per forward."""
        return self.tokens / self.forwards


@dataclass(frozen=True, slots=True)
class Drafting:
    """How drafts are made. `drafts`: drafts per round. `rows`: the class that applies MRP.

    `stale_first`: as in `speculative_yield`.
    """

    drafts: int
    stale_first: bool = False
    rows: type[Rows] = Rows


@torch.no_grad()
def speculative_yield(
    models: tuple[Backbone, Mrp | None], batch: Batch, end_id: EndIds, drafts: int, *, stale_first: bool = False
) -> Yield:
    """Speculative decoding of a batch with `drafts` drafts per round. Without MRP, all drafts use the stale logits.

    `stale_first`: after a block's first round, the first draft of a round comes from the backbone's stale logits, not
    from MRP.
    """
    trajectory = roll_out(models[0], batch, end_id)
    met = drafts_met(models, trajectory, end_id, Drafting(drafts, stale_first))
    return count_rounds(met, trajectory)


def count_rounds(met: Tensor, trajectory: Trajectory) -> Yield:
    """Counts the rounds of all blocks of a trajectory. `met`: the result of `drafts_met`."""
    return sum(count_rows(met, trajectory), Yield(0, 0))


def count_rows(met: Tensor, trajectory: Trajectory) -> list[Yield]:
    """Counts the rounds of each row of a trajectory. `met`: the result of `drafts_met`."""
    picks = torch.stack([step.open for step in trajectory.steps]).sum(0).tolist()
    return [
        sum((_rounds(met[:, :, row, block], count) for block, count in enumerate(counts)), Yield(0, 0))
        for row, counts in enumerate(picks)
    ]


def _rounds(met: Tensor, picks: int) -> Yield:
    """Counts the rounds of one block. `met` `[steps, drafts]`: whether the k-th draft after a step is right."""
    if not picks:
        return Yield(0, 0)
    at, forwards, total = 0, 1, 0
    while at + 1 < picks:
        accepted = int(met[at, : picks - at - 1].long().cumprod(0).sum())
        at += accepted + (at + accepted + 1 < picks)
        forwards += 1
        total += accepted
    return Yield(picks, forwards, total)


@torch.no_grad()
def drafts_met(
    models: tuple[Backbone, Mrp | None], trajectory: Trajectory, end_id: EndIds, drafting: Drafting
) -> Tensor:
    """`[steps, drafts, B, blocks]`: whether draft k, made after step i, equals static's pick i + k."""
    backbone, mrp = models
    refine: Refine = drafting.rows(backbone, mrp, trajectory, 1).refine if mrp else lambda _, anchor: anchor
    steps, batch, drafts = trajectory.steps, trajectory.batch, drafting.drafts
    met = torch.zeros(len(steps), drafts, *steps[0].position.shape, dtype=torch.bool)
    for start in range(len(steps) - 1):
        anchor = steps[start].hidden
        for depth, step in enumerate(steps[start + 1 : start + 1 + drafts]):
            if depth or not start or not drafting.stale_first:
                anchor = refine(step.tokens, anchor)
            met[start, depth] = _is_pick(backbone, anchor, step, batch, end_id)
    return met


def _is_pick(backbone: Backbone, anchor: Tensor, step: Step, batch: Batch, end_id: EndIds) -> Tensor:
    layout, masked = batch.layout, masked_positions(step.tokens, batch, end_id)
    logits = backbone_logits(backbone, layout.outputs(anchor), batch.mask_id)
    position, token = pick(logits, layout.readable(masked), layout.block)
    return (position == step.position) & (token == step.token) & step.open
