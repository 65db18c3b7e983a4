"""Reservations: each refused request gets its own time at which it may come back and is accepted.

The times of one tenant follow each other at the rate at which its work can be done. Its refused requests therefore
come back one after the other. A reservation that is not used within `grace_s` seconds is dropped.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque

#: the most reservations that are kept; further requests get an estimate only
MOST = 20_000
GRACE_S = 30.0


class Reservations:
    """Reservations by the digest of a request, which belongs to one tenant. Each refusal makes one."""

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
        if self._counts[tenant] < self._most - len(self):  # a tenant leaves others as many as it has
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
        self._take(digest, dues)
        return True

    def _expire(self, now: float) -> None:
        while self._expiries and self._expiries[0][0] + self._grace_s < now:
            due, digest = heapq.heappop(self._expiries)
            dues = self._dues.get(digest)
            if dues and dues[0] == due:
                self._take(digest, dues)
        self._booked = {tenant: until for tenant, until in self._booked.items() if until > now}

    def _take(self, digest: bytes, dues: deque[float]) -> None:
        dues.popleft()
        tenant = self._tenants[digest]
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant]
        if not dues:
            del self._dues[digest], self._tenants[digest]
