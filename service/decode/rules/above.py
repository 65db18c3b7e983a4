"""The rule of `dynamic`: all positions above a confidence (`low_confidence_dynamic` of SDAR's generate.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from service.decode.block import Pick
from service.decode.policy import Prediction
from service.decode.rules.leading import LeftToRightAbove


@dataclass(frozen=True, slots=True)
class ConfidenceAbove:
    """Every pick of confidence > `threshold`. If there is none, the most confident pick."""

    needs_entropy: ClassVar[bool] = False
    threshold: float

    @property
    def in_order(self) -> LeftToRightAbove:
        """The rule from left to right."""
        return LeftToRightAbove(self.threshold)

    def __call__(self, reading: Prediction) -> tuple[Pick, ...]:
        """The picks to reveal after the reading."""
        return reading.above(self.threshold)
