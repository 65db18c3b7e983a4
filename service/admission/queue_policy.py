"""Which requests may join the queue, and when a refused one should come back.

A request is refused when the work before it would take longer than `max_queue_s` at the measured rate, or when
`max_waiting` requests wait. A client that retries at its Retry-After time is accepted up to a higher limit, so new
requests cannot take its place. Below the lower limit every request is accepted, so replicas do not wait for clients
that never return. Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from service.admission.reservations import Reservations
from service.admission.throughput import Throughput
from service.errors import QueueFull
from service.fair_queue import Claim, FairQueue

#: how far above the marks those who were promised a place are let in
_PROMISED = 1.5
#: the part of the rate that is promised; what the measurement may be off
_PROMISED_RATE = 0.9


@dataclass(frozen=True, slots=True)
class Marks:
    """How much may wait: seconds of work, and requests."""

    max_queue_s: float
    max_waiting: int


class QueuePolicy:
    """Looks at a queue and its throughput; changes neither."""

    def __init__(self, queue: FairQueue[Any], throughput: Throughput, marks: Marks, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._throughput = throughput
        self._marks = marks
        self._clock = clock
        self._reservations = Reservations()

    def check(self, claim: Claim, digest: Callable[[], bytes]) -> None:
        """QueueFull when the request may not join the queue. `digest` tells requests apart; asked for if needed."""
        refusal = self._refusal(claim, 1.0)
        if len(self._reservations) and self._reservations.redeem(digest(), self._clock()):
            refusal = refusal and self._refusal(claim, _PROMISED)
        if refusal is not None:
            now = self._clock()
            due = self._reservations.book(claim.tenant, digest(), self._seconds(claim), now)
            raise QueueFull(refusal, retry_after=due - now)

    def wait_s(self, claim: Claim) -> float | None:
        """How long a request would wait that came now; None while the rate is not known."""
        rate = self._throughput.rate
        return None if rate is None else self._queue.ahead(claim) * self._throughput.ratio / rate

    def _refusal(self, claim: Claim, leniency: float) -> str | None:
        """Why the request may not join, or None."""
        most, longest = self._marks.max_waiting * leniency, self._marks.max_queue_s * leniency
        waiting = len(self._queue)
        if waiting >= most and self._queue.waiting(claim.tenant) >= most * self._queue.share(claim):
            return f"{waiting} requests are waiting, allowed are {self._marks.max_waiting}"
        wait_s = self.wait_s(claim)
        if wait_s is not None and wait_s >= longest:
            return f"the work that waits takes about {wait_s:.0f} s, allowed are {self._marks.max_queue_s:g}"
        return None

    def _seconds(self, claim: Claim) -> float:
        """How much of its tenant's time a request takes; while no rate is known, as if a full queue took the most."""
        rate = self._throughput.rate
        if rate is None:
            return self._marks.max_queue_s / self._marks.max_waiting
        return claim.cost * self._throughput.ratio / (rate * _PROMISED_RATE * self._queue.share(claim))
