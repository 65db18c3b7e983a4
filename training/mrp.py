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
from training.losses import divergence, order_divergence
from training.optim import Clock, Optimiser
from training.revision import revision_loss
from training.rollout import Step, Trajectory, masked_positions, roll_out

RATE = 4e-3
COPIES = 4
NEXT_PICK_WEIGHT = 4.0
_LOG_EVERY = 50


@dataclass(frozen=True, slots=True)
class Phase:
    """From `start` (share of the clock) on: MRP applied `steps` times, and the losses' weights."""

    start: float
    steps: int
    order: float
    revision: float


PHASES = (Phase(0.0, 1, 0.0, 0.5), Phase(0.35, 2, 0.1, 0.5), Phase(0.65, 4, 0.2, 0.5))


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
        teacher = backbone.logits(torch.cat([chain[depth].hidden for chain in chains], 1)[judged])
        student = backbone.logits(anchor[judged])
        picked = torch.cat([torch.zeros_like(c[depth].tokens).scatter(1, c[depth].place, 1) for c in chains], 1)
        weight = 1 + NEXT_PICK_WEIGHT * picked[judged]
        loss = loss + (divergence(teacher, student) * weight).sum() / weight.sum()
        if order:
            loss = loss + order * order_divergence(teacher, student, judged, block)
    return loss


def chains_of(
    trajectory: Trajectory, starts: list[int], steps: int, end_id: int
) -> tuple[list[list[Step]], list[Tensor]]:
    """Chains of `steps` steps behind each start, and the positions each application is judged on."""
    last = len(trajectory.steps) - 1
    indices = [[min(start + depth, last) for depth in range(steps + 1)] for start in starts]
    chains = [[trajectory.steps[index] for index in chain] for chain in indices]
    where = [
        torch.cat(
            [
                masked_positions(trajectory.steps[min(start + depth, last)].tokens, trajectory.batch, end_id)
                & (start + depth <= last)
                for start in starts
            ],
            1,
        )
        for depth in range(1, steps + 1)
    ]
    return chains, where


def train_mrp(
    models: tuple[Sdar, Mrp], batches: Batches, clock: Clock, save: Callable[[Sdar, Mrp], None], end_id: int
) -> None:
    """Trains until the clock is over; `save` is called now and then."""
    backbone, mrp = models
    optimiser = Optimiser(mrp.named_parameters(), RATE)
    sums, count = torch.zeros(2), 0
    for batch in batches:
        if clock.share >= 1:
            break
        phase = [phase for phase in PHASES if phase.start <= clock.share][-1]
        trajectory = roll_out(backbone, batch, end_id, sampled_share=0.5)
        starts = torch.randperm(len(trajectory.steps) - 1).tolist()
        for at in range(0, len(starts) - COPIES + 1, COPIES):
            with torch.autocast("cpu", torch.bfloat16):
                chains, where = chains_of(trajectory, starts[at : at + COPIES], phase.steps, end_id)
                chain = chain_loss(Rows(backbone, mrp, trajectory, COPIES), backbone, chains, where, phase.order)
                revision = revision_loss(Rows(backbone, mrp, trajectory, 1).refine, backbone, trajectory, end_id)
                loss = chain / phase.steps + phase.revision * revision
            optimiser.step(loss, clock.share)
            sums, count = sums + torch.stack([chain.detach() / phase.steps, revision.detach()]), count + 1
            if count == _LOG_EVERY:
                kl, second = (sums / count).tolist()
                print(f"mrp {clock.spent / 60:5.1f} min  step {optimiser.steps}  K={phase.steps}  "
                      f"loss {kl:.4f}  revision {second:.4f}", flush=True)  # fmt: skip
                sums, count = torch.zeros(2), 0
                save(backbone, mrp)
