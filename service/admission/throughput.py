"""The decoding rate of full replicas, and the part of the requested blocks that is decoded.

The rate is in blocks per second and slot. Only seconds in which every slot was taken count, recent ones more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

#: the seconds at full load, and the number of requests, after which an observation counts for 1/e
_MEMORY_S, _MEMORY_REQUESTS = 20.0, 100.0
#: seconds at full load before the rate is used
_FIRST_S = 1.0


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment. `at`: its time by the clock. `full`: the seconds at full load before it."""

    at: float
    full: float


class Throughput:
    """Measures the throughput. Its methods get every change of the slots taken, and every block."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slots = 0
        self._full = False
        self._since = clock()
        self._blocks = self._slot_seconds = self._full_seconds = 0.0
        self._requested = self._decoded = 0.0

    def occupied(self, used: int, slots: int) -> None:
        """From now on `used` of `slots` slots are taken."""
        self._update()
        self._slots = slots
        self._full = used >= slots > 0

    def _update(self) -> None:
        now = self._clock()
        if self._full and now > self._since:
            seconds = now - self._since
            decay = math.exp(-seconds / _MEMORY_S)
            self._blocks *= decay
            self._slot_seconds = self._slot_seconds * decay + self._slots * _MEMORY_S * (1 - decay)
            self._full_seconds += seconds
        self._since = now

    def decoded(self, blocks: float) -> None:
        """Counts decoded blocks. Blocks that come while a slot is free are ignored."""
        if self._full:
            self._blocks += blocks

    def moment(self) -> Moment:
        """The current moment."""
        self._update()
        return Moment(self._clock(), self._full_seconds)

    def decoded_since(self, start: Moment, blocks: float) -> None:
        """Counts the blocks of an answer that was not streamed, from `start` to now.

        Spreads them evenly over that time and counts those that fell into full load.
        """
        now = self.moment()
        if now.full > start.full:
            counted = _MEMORY_S * (1 - math.exp((start.full - now.full) / _MEMORY_S))
            self._blocks += blocks * counted / (now.at - start.at)

    def answered(self, requested: float, decoded: float) -> None:
        """Counts an answer with `decoded` blocks to a request for `requested` blocks."""
        decay = math.exp(-1 / _MEMORY_REQUESTS)
        self._requested = self._requested * decay + requested
        self._decoded = self._decoded * decay + min(requested, decoded)

    @property
    def ratio(self) -> float:
        """Blocks decoded per block requested; 1 before the first answer."""
        return self._decoded / self._requested if self._requested else 1.0

    @property
    def rate_per_slot(self) -> float | None:
        """Blocks per second of one slot while all slots are taken. None until it is known."""
        self._update()
        if self._full_seconds < _FIRST_S or not self._blocks:
            return None
        return self._blocks / self._slot_seconds

    @property
    def rate(self) -> float | None:
        """Blocks per second of all slots together. None until it is known, and while there are no slots."""
        rate = self.rate_per_slot
        return rate * self._slots if rate is not None and self._slots else None
