"""How fast the replicas decode when they are full, and how much of what is asked for gets decoded.

The rate is blocks a second and place, over the seconds in which every place was taken; recent ones count more. Knows
no requests, no queue; the clock is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

#: seconds at full load, and requests, after which an observation counts for 1/e
_MEMORY_S = 20.0
_MEMORY_REQUESTS = 100.0
#: seconds at full load from which on the rate is believed
_FIRST_S = 1.0


@dataclass(frozen=True, slots=True)
class Moment:
    """When something began: `at` by the clock, `full` in seconds at full load."""

    at: float
    full: float


class Throughput:
    """Told of every change of the places taken, and of every block."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._places = 0
        self._full = False
        self._since = clock()
        self._blocks = self._place_seconds = self._full_seconds = 0.0
        self._asked = self._decoded = 0.0

    def occupied(self, used: int, places: int) -> None:
        """From now on so many of so many places are taken."""
        self._pass()
        self._places, self._full = places, used >= places > 0

    def _pass(self) -> None:
        now = self._clock()
        if self._full and now > self._since:
            passed = now - self._since
            kept = math.exp(-passed / _MEMORY_S)
            self._blocks *= kept
            self._place_seconds = self._place_seconds * kept + self._places * _MEMORY_S * (1 - kept)
            self._full_seconds += passed
        self._since = now

    def decoded(self, blocks: float) -> None:
        """Blocks came; what comes while places are free says nothing of the most there could be."""
        if self._full:
            self._blocks += blocks

    def moment(self) -> Moment:
        """Now."""
        self._pass()
        return Moment(self._clock(), self._full_seconds)

    def decoded_since(self, begun: Moment, blocks: float) -> None:
        """Blocks came evenly since then, of which one hears only now; those at full load count, as if heard of then."""
        now = self.moment()
        if now.full > begun.full:
            counted = _MEMORY_S * (1 - math.exp((begun.full - now.full) / _MEMORY_S))
            self._blocks += blocks * counted / (now.at - begun.at)

    def answered(self, asked: float, decoded: float) -> None:
        """A request that asked for so many blocks ended with an answer of so many."""
        kept = math.exp(-1 / _MEMORY_REQUESTS)
        self._asked = self._asked * kept + asked
        self._decoded = self._decoded * kept + min(asked, decoded)

    @property
    def ratio(self) -> float:
        """The part of the blocks asked for that gets decoded; 1 until something is known."""
        return self._decoded / self._asked if self._asked else 1.0

    @property
    def rate_of_place(self) -> float | None:
        """Blocks a second of one place while all are taken; None until it is known."""
        self._pass()
        if self._full_seconds < _FIRST_S or not self._blocks:
            return None
        return self._blocks / self._place_seconds

    @property
    def rate(self) -> float | None:
        """Blocks a second of all places together; None until it is known, and while there are none."""
        rate = self.rate_of_place
        return rate * self._places if rate is not None and self._places else None
