"""When those who were refused may come back: each gets a time of its own, at which it is let in.

Times of one tenant follow each other at the pace its work can be done, so those who come back do so one after the
other. What is not redeemed within `grace_s` is forgotten. Knows no queue; the time is given.
"""

from __future__ import annotations

import heapq
from collections import deque

#: how many are kept; who comes beyond gets a time and no promise
MOST = 10_000
GRACE_S = 30.0


class Reservations:
    """Reservations by the digest of a request: equal requests have as many as were refused."""

    def __init__(self, most: int = MOST, grace_s: float = GRACE_S) -> None:
        self._most, self._grace_s = most, grace_s
        self._booked: dict[str, float] = {}  # tenant -> up to when its time is given away
        self._dues: dict[bytes, deque[float]] = {}
        self._expiries: list[tuple[float, bytes]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def book(self, tenant: str, digest: bytes, seconds: float, now: float) -> float:
        """When the request, which takes `seconds` of its tenant's time, may come back."""
        self._expire(now)
        due = max(now, self._booked.get(tenant, now)) + seconds
        if self._count < self._most:
            self._booked[tenant] = due
            self._dues.setdefault(digest, deque()).append(due)
            heapq.heappush(self._expiries, (due, digest))
            self._count += 1
        return due

    def redeem(self, digest: bytes, now: float) -> bool:
        """Whether the request's time has come; it has then had it."""
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
        self._count -= 1
        if not dues:
            del self._dues[digest]
