"""The losses of MRP on one batch: the states to start from, the applications in a row, and their losses.

A lesson is prepared once per batch and gives several losses, because the backbone forward is the expensive part.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from service.model import Backbone, Mrp
from training.batch import Batch
from training.chains import Rows, chain_loss, chains_of
from training.losses import Weights
from training.noise import Noise, noisy_chains
from training.revision import revision_loss
from training.rollout import EndIds, Trajectory, open_batch, roll_out


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the training. It begins at `start`, a share of the training in [0, 1].

    `applications`: how often MRP is applied in a row. `weights`: the weights of the losses.
    """

    start: float
    applications: int
    weights: Weights


def phases_up_to(unroll: int, weights: Weights) -> tuple[Phase, ...]:
    """Phases with one application, then two, then `unroll`. The order loss begins with the second phase, if any."""
    stages = [(0.0, 1), (0.35, 2), (0.6, unroll)][: 1 + (unroll > 1) + (unroll > 2)]
    alone = weights if len(stages) == 1 else replace(weights, order=0.0)
    return tuple(Phase(start, count, weights if start else alone) for start, count in stages)


@dataclass(frozen=True, slots=True)
class Objective:
    """The objective of the training. The defaults are those of the demo.

    `trajectories`: share of batches on static decodes; the others are on noise. `copies`: states of an example in one
    update. For trajectories: `passes`: about how often each state is used, since the backbone's decoding takes most of
    the time. `sampled`: share of rows that sample their tokens. `two_picks`: how often the first application comes two
    picks after its anchor (a draft and the bonus pick). For noise: `reveals`: the most positions of a block that are
    revealed between two states. `inverse_rate`: as in `Noise`.
    """

    phases: tuple[Phase, ...]
    trajectories: float = 1.0
    copies: int = 5
    passes: int = 1
    sampled: float = 0.5
    two_picks: float = 0.3
    reveals: int = 4
    inverse_rate: bool = False

    def phase(self, share: float) -> Phase:
        """The phase at a share of the training in [0, 1]."""
        return [phase for phase in self.phases if phase.start <= share][-1]


class Lesson(Protocol):
    """One batch, prepared."""

    def losses(self, part: int, phase: Phase) -> tuple[Tensor, Tensor]:
        """The mean divergence of an application, and the revision loss. `part`: the number of the batch's update."""


class Teacher:
    """Makes lessons of batches. `models`: backbone and MRP."""

    def __init__(self, models: tuple[Backbone, Mrp], objective: Objective, end_id: EndIds) -> None:
        self._models = models
        self._end_id = end_id
        self.objective = objective

    def updates(self, block: int) -> int:
        """The updates made with one batch: about as many as use every state `passes` times. With noise one."""
        objective = self.objective
        return max(1, (block - 1) // objective.copies) * objective.passes if objective.trajectories else 1

    def prepare(self, batch: Batch) -> Lesson:
        """A lesson of the batch, on trajectories with the probability `objective.trajectories`, else on noise."""
        backbone, objective = self._models[0], self.objective
        if torch.rand(()).item() < objective.trajectories:
            trajectory = roll_out(backbone, batch, self._end_id, objective.sampled)
            return _OnTrajectory(self._models, trajectory, objective, self._end_id)
        return _OnNoise(self._models, open_batch(backbone, batch), objective, self._end_id)


class _OnTrajectory:
    def __init__(
        self, models: tuple[Backbone, Mrp], trajectory: Trajectory, objective: Objective, end_id: EndIds
    ) -> None:
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
    def __init__(self, models: tuple[Backbone, Mrp], opened: Trajectory, objective: Objective, end_id: EndIds) -> None:
        self._models = models
        self._opened = opened
        self._end_id = end_id
        self._noise = Noise(objective.copies, objective.reveals, objective.inverse_rate)

    def losses(self, part: int, phase: Phase) -> tuple[Tensor, Tensor]:  # noqa: ARG002 (every part draws its noise)
        backbone, opened = self._models[0], self._opened
        chains, where, importance = noisy_chains(backbone, opened, self._noise, phase.applications, self._end_id)
        rows = Rows(*self._models, opened, self._noise.copies)
        chain = chain_loss(rows, backbone, chains, where, phase.weights, importance) / phase.applications
        seen = replace(opened, steps=(chains[0][0],))
        return chain, _revision(self._models, seen, phase, self._end_id)


def _revision(models: tuple[Backbone, Mrp], trajectory: Trajectory, phase: Phase, end_id: EndIds) -> Tensor:
    if not phase.weights.revision:
        return torch.zeros(())
    return revision_loss(Rows(*models, trajectory, 1).refine, models[0], trajectory, end_id)
