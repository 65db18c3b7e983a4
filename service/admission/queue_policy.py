"""The rules for joining the queue, and the Retry-After time of refused requests.

A request is refused when the work before it would take longer than `max_queue_s` at the measured rate, or when
`max_waiting` requests wait. A client that retries at its Retry-After time is accepted up to a higher limit, so new
requests cannot take its place. Below the lower limit every request is accepted, so replicas do not wait for clients
that never return.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from service.admission.throughput import Throughput
from service.errors import QueueFull
from service.fair_queue import FairQueue, Ticket

#: factor on both limits for a request that comes back at its Retry-After time
_PROMISED = 1.5
#: factor on the measured rate when a Retry-After time is computed: a margin for errors of the measurement
_PROMISED_RATE = 0.9
#: the most reservations, and the seconds after its time until which one can be used
MOST, GRACE_S = 20_000, 30.0


class Reservations:
    """Each refused request gets its own time at which it may come back and is accepted.

    The times of one tenant follow each other at the rate at which its work can be done. Its refused requests therefore
    come back one after the other. A reservation that is not used within `grace_s` seconds is dropped. A request is
    known by its digest. `most`: the most reservations; further requests get an estimate only.
    """

    def __init__(self, most: int = MOST, grace_s: float = GRACE_S) -> None:
        self._most, self._grace_s = most, grace_s
        self._booked: dict[str, float] = {}  # tenant -> time of its last reservation
        self._dues: dict[bytes, deque[float]] = {}
        self._tenants: dict[bytes, str] = {}
        self._expiries: list[tuple[float, bytes]] = []
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._counts.total()

    def book(self, tenant: str, digest: bytes, seconds: float, now: float) -> float:
        """The time at which the request may come back. `seconds`: how long its work takes at its tenant's rate."""
        self._expire(now)
        due = max(now, self._booked.get(tenant, now)) + seconds
        if self._counts[tenant] < self._most - len(self):  # a tenant has no more than are still free
            self._booked[tenant] = due
            self._dues.setdefault(digest, deque()).append(due)
            self._tenants[digest] = tenant
            heapq.heappush(self._expiries, (due, digest))
            self._counts[tenant] += 1
        return due

    def redeem(self, digest: bytes, now: float) -> bool:
        """Whether the request has a reservation whose time has come. Uses that reservation."""
        self._expire(now)
        dues = self._dues.get(digest)
        if not dues or dues[0] > now:
            return False
        self._redeem(digest, dues)
        return True

    def _expire(self, now: float) -> None:
        while self._expiries and self._expiries[0][0] + self._grace_s < now:
            due, digest = heapq.heappop(self._expiries)
            dues = self._dues.get(digest)
            if dues and dues[0] == due:
                self._redeem(digest, dues)
        self._booked = {tenant: until for tenant, until in self._booked.items() if until > now}

    def _redeem(self, digest: bytes, dues: deque[float]) -> None:
        dues.popleft()
        tenant = self._tenants[digest]
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant]
        if not dues:
            del self._dues[digest], self._tenants[digest]


class QueuePolicy:
    """Decides from a queue and its throughput. Changes neither. `limits`: seconds of work, and number of requests."""

    def __init__(
        self, queue: FairQueue[Any], throughput: Throughput, limits: tuple[float, int], clock: Callable[[], float]
    ) -> None:
        self._queue, self._throughput, self._clock = queue, throughput, clock
        self._max_queue_s, self._max_waiting = limits
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
        most, longest = self._max_waiting * leniency, self._max_queue_s * leniency
        waiting = len(self._queue)
        if waiting >= most and self._queue.waiting(ticket.tenant) >= most * self._queue.share(ticket):
            return f"{waiting} requests are waiting, allowed are {self._max_waiting}"
        wait_s = self.wait_s(ticket)
        if wait_s is not None and wait_s >= longest:
            return f"the waiting work takes about {wait_s:.0f} s, allowed are {self._max_queue_s:g} s"
        return None

    def _seconds(self, ticket: Ticket) -> float:
        """The seconds of its tenant's share that a request takes. A guess while no rate is known."""
        rate = self._throughput.rate
        if rate is None:
            return self._throughput.guessed_s
        return ticket.cost * self._throughput.ratio / (rate * _PROMISED_RATE * self._queue.share(ticket))
