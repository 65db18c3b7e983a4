"""The rule of `static`: the n most confident positions (`low_confidence_static` of SDAR's generate.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from service.decode.block import Pick
from service.decode.policy import Prediction
from service.decode.rules.leftmost import LeftToRight


@dataclass(frozen=True, slots=True)
class TopConfidence:
    """The `count` picks of highest confidence."""

    needs_entropy: ClassVar[bool] = False
    count: int = 1

    @property
    def in_order(self) -> LeftToRight:
        """The rule from left to right."""
        return LeftToRight(self.count)

    def __call__(self, reading: Prediction) -> tuple[Pick, ...]:
        """The picks to reveal after the reading."""
        return reading.most_confident(self.count)
