"""The rules for joining the queue, and the Retry-After time of refused requests.

A request is refused when the work before it would take longer than `max_queue_s` at the measured rate, or when
`max_waiting` requests wait. A client that retries at its Retry-After time is accepted up to a higher limit, so new
requests cannot take its place. Below the lower limit every request is accepted, so replicas do not wait for clients
that never return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from service.admission.reservations import Reservations
from service.admission.throughput import Throughput
from service.errors import QueueFull
from service.fair_queue import FairQueue, Ticket

#: factor on both limits for a request that comes back at its Retry-After time
_PROMISED = 1.5
#: factor on the measured rate when a Retry-After time is computed: a margin for errors of the measurement
_PROMISED_RATE = 0.9


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of the queue: seconds of work, and number of requests."""

    max_queue_s: float
    max_waiting: int


class QueuePolicy:
    """Decides from a queue and its throughput. Changes neither."""

    def __init__(
        self, queue: FairQueue[Any], throughput: Throughput, limits: QueueLimits, clock: Callable[[], float]
    ) -> None:
        self._queue = queue
        self._throughput = throughput
        self._limits = limits
        self._clock = clock
        self._reservations = Reservations()

    def check(self, ticket: Ticket, digest: Callable[[], bytes]) -> None:
        """QueueFull if the request may not join the queue. `digest` hashes the request; it is called only if needed."""
        refusal = self._refusal(ticket, 1.0)
        if len(self._reservations) and self._reservations.redeem(digest(), self._clock()):
            refusal = refusal and self._refusal(ticket, _PROMISED)
        if refusal is not None:
            now = self._clock()
            due = self._reservations.book(ticket.tenant, digest(), self._seconds(ticket), now)
            raise QueueFull(refusal, retry_after=due - now)

    def wait_s(self, ticket: Ticket) -> float | None:
        """The estimated wait, in seconds, of a request that comes now. None while the rate is not known."""
        rate = self._throughput.rate
        return None if rate is None else self._queue.ahead(ticket) * self._throughput.ratio / rate

    def _refusal(self, ticket: Ticket, leniency: float) -> str | None:
        """The reason why the request may not join, or None."""
        most, longest = self._limits.max_waiting * leniency, self._limits.max_queue_s * leniency
        waiting = len(self._queue)
        if waiting >= most and self._queue.waiting(ticket.tenant) >= most * self._queue.share(ticket):
            return f"{waiting} requests are waiting, allowed are {self._limits.max_waiting}"
        wait_s = self.wait_s(ticket)
        if wait_s is not None and wait_s >= longest:
            return f"the waiting work takes about {wait_s:.0f} s, allowed are {self._limits.max_queue_s:g} s"
        return None

    def _seconds(self, ticket: Ticket) -> float:
        """The seconds of its tenant's share that a request takes.

        While no rate is known, a full queue is assumed to take `max_queue_s`.
        """
        rate = self._throughput.rate
        if rate is None:
            return self._limits.max_queue_s / self._limits.max_waiting
        return ticket.cost * self._throughput.ratio / (rate * _PROMISED_RATE * self._queue.share(ticket))
