"""The rule of `entropy`: as many positions of lowest entropy as a bound allows (EB-Sampler, arXiv 2505.24857)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from service.decode.block import Pick
from service.decode.policy import Prediction
from service.decode.rules.bounded import bounded
from service.decode.rules.leftmost import LeftToRight


@dataclass(frozen=True, slots=True)
class LowestEntropy:
    """The picks of lowest entropy within `bound` (nats). Ties go to the lowest position."""

    needs_entropy: ClassVar[bool] = True
    bound: float

    @property
    def in_order(self) -> LeftToRight:
        """The rule from left to right."""
        return LeftToRight(1, self.bound)

    def __call__(self, reading: Prediction) -> tuple[Pick, ...]:
        """The picks to reveal after the reading."""
        ordered = sorted(range(len(reading.positions)), key=reading.entropies.__getitem__)
        return bounded(reading, ordered, self.bound)
