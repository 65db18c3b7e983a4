"""The start times of requests: levels over time, and Poisson arrivals, which do not depend on answers.

A request's time counts from its arrival, even if it is sent late, so the times include what a stalled server delays.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A number of seconds during which the load goes from one level to another."""

    seconds: float
    first: float
    last: float

    def level(self, at: float) -> float:
        return self.first + (self.last - self.first) * at / self.seconds


@dataclass(frozen=True)
class Profile:
    stages: tuple[Stage, ...]

    @classmethod
    def parse(cls, text: str) -> Profile:
        """`SECONDS:LEVEL` or `SECONDS:FROM-TO`, with commas between: `30:5,10:50,30:5` is a spike."""
        try:
            stages = tuple(_stage(part) for part in text.split(","))
        except ValueError as error:
            raise ValueError(
                f"levels {text!r} ({error}); allowed: SECONDS:LEVEL or SECONDS:FROM-TO, separated by commas"
            ) from None
        return cls(stages)

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def level(self, at: float) -> tuple[int, float]:
        """The number of the stage at a time before the end, and its level then."""
        number = 0
        while number + 1 < len(self.stages) and at >= self.stages[number].seconds:
            at -= self.stages[number].seconds
            number += 1
        return number, self.stages[number].level(at)


def _stage(text: str) -> Stage:
    seconds, _, levels = text.strip().partition(":")
    first, _, last = levels.partition("-")
    stage = Stage(float(seconds), float(first), float(last or first))
    if stage.seconds <= 0 or min(stage.first, stage.last) < 0:
        raise ValueError("seconds must be above 0 and levels 0 or more")
    return stage


def poisson(profile: Profile, share: float, draw: random.Random) -> Iterator[float]:
    """Arrivals at a profile's rate times `share`, as seconds after the start.

    n independent sources with the share 1/n add up to the whole.
    """
    highest = share * max(max(stage.first, stage.last) for stage in profile.stages)
    at = draw.expovariate(highest) if highest > 0 else profile.seconds
    while at < profile.seconds:
        # thinning: candidates come at the highest rate; each is kept with the probability rate / highest rate
        if draw.random() * highest < share * profile.level(at)[1]:
            yield at
        at += draw.expovariate(highest)
