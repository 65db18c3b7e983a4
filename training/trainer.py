"""The training loop of MRP, for the demo's recipe and for any checkpoint.

All random numbers come from seeds made of (seed, round, part, batch). A resumed run, or a run with several workers,
therefore draws the same numbers as one uninterrupted worker.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from training.batch import Batch
from training.lessons import Lesson, Phase, Teacher
from training.optim import Optimiser, Progress


@dataclass(frozen=True, slots=True)
class Report:
    """The losses of one update, averaged over all batches of all workers."""

    step: int
    applications: int
    chain: float
    revision: float


@dataclass(frozen=True, slots=True)
class Team:
    """The workers that share an update's batches. With several workers, torch.distributed must be set up."""

    rank: int = 0
    size: int = 1

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replaces each tensor by its sum over all workers."""
        if self.size > 1:
            for tensor in tensors:
                torch.distributed.all_reduce(tensor)


def fast_in_bfloat16(device_type: str) -> bool:
    """Whether the device multiplies fast in bfloat16: a GPU, and a CPU on which oneDNN does, such as one with AVX-512.

    Elsewhere such products take ten to twenty times the time of float32.
    """
    if device_type != "cpu":
        return True
    operations = torch.ops.mkldnn
    return torch.backends.mkldnn.is_available() and bool(operations._is_mkldnn_bf16_supported())  # noqa: SLF001 (torch's only name)


@dataclass(frozen=True, slots=True)
class Trainer:
    """Updates MRP's weights.

    `bf16`: the losses' matrix products in bfloat16 where the device is fast in it, weights and sums in float32.
    """

    teacher: Teacher
    optimiser: Optimiser
    seed: int = 0
    bf16: bool = True
    team: Team = field(default_factory=Team)

    def run(self, rounds: Iterable[list[Batch]], progress: Progress, after: Callable[[Report], None]) -> None:
        """Trains until `progress` is over. `rounds` begins with the round of the optimiser's current step.

        A round has this worker's batches for the next updates. All workers have the same number of batches.
        """
        # Norms in float32 over bfloat16 are intended.
        warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
        for batches in rounds:
            updates = self.teacher.updates(batches[0].layout.block)
            number, first = divmod(self.optimiser.steps, updates)
            offset = self.team.rank * len(batches)
            lessons = [self._prepare(number, index, batch) for index, batch in enumerate(batches, offset)]
            for part in range(first, updates):
                if progress.share >= 1:
                    return
                after(self._update(lessons, (number, part), progress.share))

    def _prepare(self, number: int, index: int, batch: Batch) -> Lesson:
        self._seed(number, -1, index)
        return self.teacher.prepare(batch)

    def _update(self, lessons: list[Lesson], round_and_part: tuple[int, int], share: float) -> Report:
        phase, parts = self.teacher.objective.phase(share), len(lessons) * self.team.size
        means = torch.zeros(2)
        self.optimiser.forget()
        for index, lesson in enumerate(lessons):
            self._seed(*round_and_part, self.team.rank * len(lessons) + index)
            means += self._learn(lesson, round_and_part[1], phase, parts)
        self._share(means)
        self.optimiser.update(share)
        chain, revision = means.tolist()
        return Report(self.optimiser.steps, phase.applications, chain, revision)

    def _learn(self, lesson: Lesson, part: int, phase: Phase, parts: int) -> Tensor:
        """Adds one lesson's gradients. Returns its part of the update's mean losses."""
        kind = self.optimiser.parameters[0].device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self.bf16 and fast_in_bfloat16(kind)):
            chain, revision = lesson.losses(part, phase)
        loss = (chain + phase.weights.revision * revision) / parts
        if loss.requires_grad:  # a batch may have no position to compare
            loss.backward()
        return torch.stack([chain.detach(), revision.detach()]).float() / parts

    def _share(self, means: Tensor) -> None:
        for parameter in self.optimiser.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.team.add_up([means, *(p.grad for p in self.optimiser.parameters if p.grad is not None)])

    def _seed(self, number: int, part: int, index: int) -> None:
        name = f"{self.seed}/{number}/{part}/{index}"
        torch.manual_seed(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()))
