"""Trains an MRP module on its frozen backbone's own static decodes.

Phases: one application of MRP, then two and more in a row (each from the state one pick later, the
anchor passed on), the later ones with an order loss, so that drafts come in the backbone's order.
Beside it a revision loss for `remask`: of picks made in parallel, what would the backbone say of one
of them with the others in place?
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from service.model import ModelConfig, Mrp, Sdar
from training.attention import DenseAttention
from training.data import Batches
from training.losses import divergence, exact_logits, order_divergence
from training.optim import Clock, Optimiser
from training.revision import revision_loss
from training.rollout import Step, Trajectory, masked_positions, roll_out

RATE = 3e-3
COPIES = 5
NEXT_PICK_WEIGHT = 4.0
#: How often the first application sees two picks since its anchor (a draft beside the bonus pick).
TWO_PICKS_SHARE = 0.3
_LOG_EVERY = 50


@dataclass(frozen=True, slots=True)
class Phase:
    """From `start` (share of the clock) on: MRP applied `steps` times, and the losses' weights."""

    start: float
    steps: int
    order: float
    revision: float


PHASES = (Phase(0.0, 1, 0.0, 0.5), Phase(0.35, 2, 0.25, 0.5), Phase(0.6, 4, 0.5, 0.5))


def new_mrp(config: ModelConfig, backbone: Sdar) -> Mrp:
    """An MRP module whose layers are the backbone's last, and whose output starts small."""
    if config.mrp is None:
        raise ValueError("the config has no MRP module: num_nextn_predict_layers is 0")
    mrp = Mrp(config, config.mrp)
    hidden = config.hidden_size
    last = list(backbone.layers)[-config.mrp.num_layers :]
    with torch.no_grad():
        nn.init.normal_(mrp.eh_proj.weight, std=0.12 / math.sqrt(2 * hidden))
        mrp.eh_proj.weight[:, :hidden] += 0.7 * torch.eye(hidden)
        mrp.eh_proj.weight[:, hidden:] += torch.eye(hidden)
        mrp.norm.weight.copy_(0.15 * backbone.norm.weight)
    for layer, source in zip(mrp.layers, last, strict=True):
        layer.load_state_dict(source.state_dict())
    return mrp


class Rows:
    """MRP over `[clean | states]`: several states of the same trajectory beside each other."""

    def __init__(self, backbone: Sdar, mrp: Mrp, trajectory: Trajectory, copies: int) -> None:
        self._backbone, self._mrp, self._trajectory = backbone, mrp, trajectory
        layout = trajectory.batch.layout
        self._rotation = backbone.rotary(layout.positions(copies))
        self._mask, self._clean = layout.mask(copies), layout.clean

    def refine(self, tokens: Tensor, anchor: Tensor) -> Tensor:
        """tokens `[B, copies * N]`, anchor `[B, copies * N, H]` -> the next anchor, same shape."""
        batch = self._trajectory.batch
        embedded = self._backbone.embed_tokens(torch.cat([batch.clean, tokens], 1))
        anchors = torch.cat([self._trajectory.clean_hidden.to(anchor.dtype), anchor], 1)
        out: Tensor = self._mrp(embedded, anchors, self._rotation, DenseAttention(self._mask))
        return out[:, self._clean :]


def chain_loss(rows: Rows, backbone: Sdar, chains: list[list[Step]], where: list[Tensor], order: float) -> Tensor:
    """The loss of MRP applied along some chains of consecutive steps, beside each other as copies.

    `chains[c]`: the anchor's step and those after it. `where[k]` `[B, copies * N]`: positions that
    application k is judged on.
    """
    block = chains[0][0].tokens.shape[1] // chains[0][0].place.shape[1]
    anchor, loss = torch.cat([chain[0].hidden for chain in chains], 1), torch.zeros(())
    for depth, judged in enumerate(where, start=1):
        anchor = rows.refine(torch.cat([chain[depth].tokens for chain in chains], 1), anchor)
        if not judged.any():
            continue
        teacher = exact_logits(backbone, torch.cat([chain[depth].hidden for chain in chains], 1)[judged])
        student = exact_logits(backbone, anchor[judged])
        picked = torch.cat([torch.zeros_like(c[depth].tokens).scatter(1, c[depth].place, 1) for c in chains], 1)
        weight = 1 + NEXT_PICK_WEIGHT * picked[judged]
        loss = loss + (divergence(teacher, student) * weight).sum() / weight.sum()
        if order:
            loss = loss + order * order_divergence(teacher, student, judged, block)
    return loss


def chains_of(
    trajectory: Trajectory, starts: list[int], offsets: list[int], end_id: int
) -> tuple[list[list[Step]], list[Tensor]]:
    """Chains of steps behind each start, and the positions each application is judged on.

    `offsets`: how far behind the start each application's state lies, such as `[1, 2]`; `[2, 3]` where
    two picks came between.
    """
    steps, last = trajectory.steps, len(trajectory.steps) - 1
    chains = [[steps[min(start + offset, last)] for offset in (0, *offsets)] for start in starts]
    where = [
        torch.cat(
            [
                masked_positions(chain[depth].tokens, trajectory.batch, end_id) & (start + offset <= last)
                for chain, start in zip(chains, starts, strict=True)
            ],
            1,
        )
        for depth, offset in enumerate(offsets, start=1)
    ]
    return chains, where


def losses(
    models: tuple[Sdar, Mrp], trajectory: Trajectory, starts: list[int], phase: Phase, end_id: int
) -> tuple[Tensor, Tensor]:
    """The chain loss of one application on average, and the revision loss."""
    backbone, mrp = models
    gap = 2 if torch.rand(()).item() < TWO_PICKS_SHARE else 1
    chains, where = chains_of(trajectory, starts, list(range(gap, gap + phase.steps)), end_id)
    rows = Rows(backbone, mrp, trajectory, len(starts))
    chain = chain_loss(rows, backbone, chains, where, phase.order) / phase.steps
    return chain, revision_loss(Rows(backbone, mrp, trajectory, 1).refine, backbone, trajectory, end_id)


def train_mrp(
    models: tuple[Sdar, Mrp], batches: Batches, clock: Clock, save: Callable[[Sdar, Mrp], None], end_id: int
) -> None:
    """Trains until the clock is over; `save` is called now and then."""
    optimiser, logged = Optimiser(models[1].named_parameters(), RATE), torch.zeros(2)
    for batch in batches:
        if clock.share >= 1:
            break
        phase = [phase for phase in PHASES if phase.start <= clock.share][-1]
        trajectory = roll_out(models[0], batch, end_id, sampled_share=0.5)
        starts = torch.randperm(len(trajectory.steps) - 1).tolist()
        for at in range(0, len(starts) - COPIES + 1, COPIES):
            with torch.autocast("cpu", torch.bfloat16):
                chain, revision = losses(models, trajectory, starts[at : at + COPIES], phase, end_id)
            optimiser.step(chain + phase.revision * revision, clock.share)
            logged += torch.stack([chain.detach(), revision.detach()]) / _LOG_EVERY
            if optimiser.steps % _LOG_EVERY == 0:
                _log(clock, optimiser.steps, phase, logged)
                logged = torch.zeros(2)
                save(*models)


def _log(clock: Clock, step: int, phase: Phase, means: Tensor) -> None:
    chain, revision = means.tolist()
    minutes = clock.spent / 60
    print(f"mrp {minutes:5.1f} min  step {step}  K={phase.steps}  {chain:.4f}  revision {revision:.4f}", flush=True)
