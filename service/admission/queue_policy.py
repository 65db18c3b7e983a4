"""The rules for joining the queue (`max_queue_s`, `max_waiting`), and the Retry-After time of refused requests."""

from collections.abc import Callable
from typing import Any

from service.admission.throughput import Throughput
from service.errors import QueueFull
from service.fair_queue import FairQueue, Ticket


class QueuePolicy:
    """`limits`: seconds of work, and requests. A tenant's refused requests get ascending Retry-After times."""

    def __init__(
        self, queue: FairQueue[Any], throughput: Throughput, limits: tuple[float, int], clock: Callable[[], float]
    ) -> None:
        self._queue, self._throughput, self._clock = queue, throughput, clock
        self._max_queue_s, self._max_waiting = limits
        self._last_retry: dict[str, float] = {}  # tenant -> time at which its last refused request may come back

    def check(self, ticket: Ticket) -> None:
        """QueueFull if the request may not join the queue. Its wait is not known while the rate is not."""
        rate, ratio, share = self._throughput.rate, self._throughput.ratio, self._queue.share(ticket)
        limit, waiting = self._max_waiting, len(self._queue)
        if waiting >= limit and self._queue.waiting(ticket.tenant) >= limit * share:
            refusal = f"{waiting} requests are waiting, allowed are {limit}"
        elif rate is not None and (wait_s := self._queue.ahead(ticket) * ratio / rate) >= self._max_queue_s:
            refusal = f"the waiting work takes about {wait_s:.0f} s, allowed are {self._max_queue_s:g} s"
        else:
            return
        now = self._clock()
        seconds = self._throughput.guessed_s if rate is None else ticket.cost * ratio / (rate * share)
        retry = max(now, self._last_retry.get(ticket.tenant, now)) + seconds
        self._last_retry[ticket.tenant] = retry
        raise QueueFull(refusal, retry_after=retry - now)
