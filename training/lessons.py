"""What one batch teaches MRP: states to start from, applications in a row, and the losses there.

A lesson is prepared once per batch and gives several losses, for what the backbone said is the dear part.
Knows no optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from service.model import Mrp, Sdar
from training.batch import Batch
from training.chains import Rows, chain_loss, chains_of
from training.losses import Weights
from training.noise import Noise, noisy_chains
from training.revision import revision_loss
from training.rollout import EndIds, Trajectory, open_batch, roll_out


@dataclass(frozen=True, slots=True)
class Phase:
    """From `start` (share of the training) on: MRP applied `applications` times in a row, and the losses' weights."""

    start: float
    applications: int
    weights: Weights


def phases_up_to(unroll: int, weights: Weights) -> tuple[Phase, ...]:
    """One application first, then two, then `unroll`; the order is taught in chains, or where there are none."""
    stages = [(0.0, 1), (0.35, 2), (0.6, unroll)][: 1 + (unroll > 1) + (unroll > 2)]
    alone = weights if len(stages) == 1 else replace(weights, order=0.0)
    return tuple(Phase(start, count, weights if start else alone) for start, count in stages)


@dataclass(frozen=True, slots=True)
class Objective:
    """What MRP is trained to do. Defaults: the demo's.

    `trajectories`: share of the batches taught on static decodes, the others on noise. `copies`: states of an example
    in one update. Of trajectories: `sampled`, the rows that sample their tokens; `two_picks`, how often the first
    application sees two picks since its anchor (a draft beside the bonus pick). Of noise: `reveals`, the most
    positions of a block revealed between two states.
    """

    phases: tuple[Phase, ...]
    trajectories: float = 1.0
    copies: int = 5
    sampled: float = 0.5
    two_picks: float = 0.3
    reveals: int = 4

    def phase(self, share: float) -> Phase:
        """The phase of a moment of the training."""
        return [phase for phase in self.phases if phase.start <= share][-1]


class Lesson(Protocol):
    """One batch, prepared."""

    def losses(self, part: int, phase: Phase) -> tuple[Tensor, Tensor]:
        """The divergence of one application on average, and the revision loss, for the part-th update."""


class Teacher:
    """Makes lessons of batches for the models `(backbone, mrp)`."""

    def __init__(self, models: tuple[Sdar, Mrp], objective: Objective, end_id: EndIds) -> None:
        self._models = models
        self._end_id = end_id
        self.objective = objective

    def updates(self, block: int) -> int:
        """Updates that one batch is good for: as many as use every state of a trajectory about once."""
        return max(1, (block - 1) // self.objective.copies)

    def prepare(self, batch: Batch) -> Lesson:
        """A lesson of that batch, on trajectories or on noise as the objective's share has it."""
        backbone, objective = self._models[0], self.objective
        if torch.rand(()).item() < objective.trajectories:
            trajectory = roll_out(backbone, batch, self._end_id, objective.sampled)
            return _OnTrajectory(self._models, trajectory, objective, self._end_id)
        return _OnNoise(self._models, open_batch(backbone, batch), objective, self._end_id)


class _OnTrajectory:
    def __init__(self, models: tuple[Sdar, Mrp], trajectory: Trajectory, objective: Objective, end_id: EndIds) -> None:
        self._models = models
        self._trajectory = trajectory
        self._objective = objective
        self._end_id = end_id
        self._starts = torch.randperm(max(1, len(trajectory.steps) - 1)).tolist()

    def losses(self, part: int, phase: Phase) -> tuple[Tensor, Tensor]:
        copies = self._objective.copies
        starts = [self._starts[(part * copies + number) % len(self._starts)] for number in range(copies)]
        gap = 2 if torch.rand(()).item() < self._objective.two_picks else 1
        offsets = list(range(gap, gap + phase.applications))
        chains, where = chains_of(self._trajectory, starts, offsets, self._end_id)
        rows = Rows(*self._models, self._trajectory, copies)
        chain = chain_loss(rows, self._models[0], chains, where, phase.weights) / phase.applications
        return chain, _revision(self._models, self._trajectory, phase, self._end_id)


class _OnNoise:
    def __init__(self, models: tuple[Sdar, Mrp], opened: Trajectory, objective: Objective, end_id: EndIds) -> None:
        self._models = models
        self._opened = opened
        self._end_id = end_id
        self._noise = Noise(objective.copies, objective.reveals)

    def losses(self, part: int, phase: Phase) -> tuple[Tensor, Tensor]:  # noqa: ARG002 (every part draws its noise)
        backbone, opened = self._models[0], self._opened
        chains, where = noisy_chains(backbone, opened, self._noise, phase.applications, self._end_id)
        rows = Rows(*self._models, opened, self._noise.copies)
        chain = chain_loss(rows, backbone, chains, where, phase.weights) / phase.applications
        seen = replace(opened, steps=(chains[0][0],))
        return chain, _revision(self._models, seen, phase, self._end_id)


def _revision(models: tuple[Sdar, Mrp], trajectory: Trajectory, phase: Phase, end_id: EndIds) -> Tensor:
    if not phase.weights.revision:
        return torch.zeros(())
    return revision_loss(Rows(*models, trajectory, 1).refine, models[0], trajectory, end_id)
