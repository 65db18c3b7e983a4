"""The rule of `dynamic` in the order of the text: for answers that keep to a grammar."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar

from service.decode.block import Pick
from service.decode.policy import Prediction


@dataclass(frozen=True, slots=True)
class LeftToRightAbove:
    """The leftmost pick, and those after it up to the first of confidence <= `threshold`."""

    needs_entropy: ClassVar[bool] = False
    threshold: float

    @property
    def in_order(self) -> LeftToRightAbove:
        """Itself."""
        return self

    def __call__(self, reading: Prediction) -> tuple[Pick, ...]:
        """The picks to reveal after the reading."""
        sure = takewhile(lambda confidence: confidence > self.threshold, reading.confidences[1:])
        return reading.picked(range(1 + sum(1 for _ in sure)))
