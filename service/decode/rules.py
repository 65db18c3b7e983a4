"""Reveal rules: which picks of a reading are fixed next. What `speculative` verifies its drafts against."""

from __future__ import annotations

from dataclasses import dataclass

from service.decode.block import Pick
from service.decode.policy import Reading


@dataclass(frozen=True, slots=True)
class MostConfident:
    """The `count` picks of highest confidence: the rule of `static`."""

    count: int = 1

    def __call__(self, reading: Reading) -> tuple[Pick, ...]:
        """What is revealed after the reading."""
        return reading.most_confident(self.count)


@dataclass(frozen=True, slots=True)
class Above:
    """Every pick of confidence > `threshold`; if there is none, the most confident: the rule of `dynamic`."""

    threshold: float

    def __call__(self, reading: Reading) -> tuple[Pick, ...]:
        """What is revealed after the reading."""
        return reading.above(self.threshold)


Rule = MostConfident | Above
