"""The rules for joining the queue (`max_queue_s`, `max_waiting`), and the Retry-After time of refused requests."""

from collections.abc import Callable
from typing import Any

from service.admission.throughput import Throughput
from service.errors import QueueFull
from service.fair_queue import FairQueue, Ticket


class QueuePolicy:
    """Decides from a queue and its throughput. `limits`: seconds of work, and number of requests.

    Each refused request of a tenant gets a later Retry-After, by the time that its work takes: they return one by one.
    """

    def __init__(
        self, queue: FairQueue[Any], throughput: Throughput, limits: tuple[float, int], clock: Callable[[], float]
    ) -> None:
        self._queue, self._throughput, self._clock = queue, throughput, clock
        self._max_queue_s, self._max_waiting = limits
        self._last_retry: dict[str, float] = {}  # tenant -> time at which its last refused request may come back

    def check(self, ticket: Ticket) -> None:
        if refusal := self._refusal(ticket):
            now = self._clock()
            retry = max(now, self._last_retry.get(ticket.tenant, now)) + self._seconds(ticket)
            self._last_retry[ticket.tenant] = retry
            raise QueueFull(refusal, retry_after=retry - now)

    def wait_s(self, ticket: Ticket) -> float | None:
        """The estimated wait, in seconds, of a request that comes now. None while the rate is not known."""
        rate = self._throughput.rate
        return None if rate is None else self._queue.ahead(ticket) * self._throughput.ratio / rate

    def _refusal(self, ticket: Ticket) -> str | None:
        limit, waiting = self._max_waiting, len(self._queue)
        if waiting >= limit and self._queue.waiting(ticket.tenant) >= limit * self._queue.share(ticket):
            return f"{waiting} requests are waiting, allowed are {limit}"
        wait_s = self.wait_s(ticket)
        if wait_s is not None and wait_s >= self._max_queue_s:
            return f"the waiting work takes about {wait_s:.0f} s, allowed are {self._max_queue_s:g} s"
        return None

    def _seconds(self, ticket: Ticket) -> float:
        """The seconds of its tenant's share that a request takes. A guess while no rate is known."""
        rate = self._throughput.rate
        if rate is None:
            return self._throughput.guessed_s
        return ticket.cost * self._throughput.ratio / (rate * self._queue.share(ticket))
