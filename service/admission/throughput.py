"""The decoding rate of full replicas, and the part of the requested blocks that is decoded.

The rate is in blocks per second and slot. Only seconds in which every slot was taken count, recent ones more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

#: an observation counts for 1/e after so many seconds at full load, or so many requests
_MEMORY_S = 20.0
_MEMORY_REQUESTS = 100.0
#: seconds at full load before the rate is used
_FIRST_S = 1.0


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment: `at` by the clock; `full`: seconds at full load up to it."""

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
        self._asked = self._decoded = 0.0

    def occupied(self, used: int, slots: int) -> None:
        """From now on `used` of `slots` slots are taken."""
        self._pass()
        self._slots = slots
        self._full = used >= slots > 0

    def _pass(self) -> None:
        now = self._clock()
        if self._full and now > self._since:
            passed = now - self._since
            kept = math.exp(-passed / _MEMORY_S)
            self._blocks *= kept
            self._slot_seconds = self._slot_seconds * kept + self._slots * _MEMORY_S * (1 - kept)
            self._full_seconds += passed
        self._since = now

    def decoded(self, blocks: float) -> None:
        """Counts decoded blocks. Blocks that come while a slot is free are ignored."""
        if self._full:
            self._blocks += blocks

    def moment(self) -> Moment:
        """The current moment."""
        self._pass()
        return Moment(self._clock(), self._full_seconds)

    def decoded_since(self, begun: Moment, blocks: float) -> None:
        """Counts the blocks of an answer that was not streamed, from `begun` to now.

        Spreads them evenly over that time and counts those that fell into full load.
        """
        now = self.moment()
        if now.full > begun.full:
            counted = _MEMORY_S * (1 - math.exp((begun.full - now.full) / _MEMORY_S))
            self._blocks += blocks * counted / (now.at - begun.at)

    def answered(self, asked: float, decoded: float) -> None:
        """Counts an answer with `decoded` blocks to a request for `asked` blocks."""
        kept = math.exp(-1 / _MEMORY_REQUESTS)
        self._asked = self._asked * kept + asked
        self._decoded = self._decoded * kept + min(asked, decoded)

    @property
    def ratio(self) -> float:
        """Blocks decoded per block requested; 1 before the first answer."""
        return self._decoded / self._asked if self._asked else 1.0

    @property
    def rate_per_slot(self) -> float | None:
        """Blocks per second of one slot while all slots are taken. None until it is known."""
        self._pass()
        if self._full_seconds < _FIRST_S or not self._blocks:
            return None
        return self._blocks / self._slot_seconds

    @property
    def rate(self) -> float | None:
        """Blocks per second of all slots together. None until it is known, and while there are no slots."""
        rate = self.rate_per_slot
        return rate * self._slots if rate is not None and self._slots else None
