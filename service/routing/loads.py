"""The number of requests at every replica, as one ingress knows it.

The ingress counts its own requests exactly, from the choice of the replica on. A replica reports the requests of other
ingresses when it takes a request. The ingress drops such a report after a few seconds: a replica that seems busy gets
no requests and so would never report again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

#: seconds for which a replica's report is used, and within which a chosen replica must be asked
_REPORT_S = 5.0
_CHOSEN_S = 2.0


@dataclass(slots=True)
class _Replica:
    own: int = 0
    others: int = 0
    others_until: float = 0.0
    chosen_until: deque[float] = field(default_factory=deque)


class Loads:
    """Counts requests. Its methods get every choice of a replica, the replica's report, and every end of a request."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._replicas: dict[str, _Replica] = {}

    def now(self) -> dict[str, int]:
        """Replica -> number of requests."""
        now = self._clock()
        return {name: _requests(replica, now) for name, replica in self._replicas.items()}

    def set_replicas(self, names: Iterable[str]) -> None:
        """Sets the names of the replicas."""
        self._replicas = {name: self._replicas.get(name) or _Replica() for name in names}

    def remove(self, name: str) -> None:
        """Removes a replica."""
        self._replicas.pop(name, None)

    def chosen(self, name: str) -> None:
        """Counts a request from the choice of its replica on, so requests that come at the same time are counted."""
        if replica := self._replicas.get(name):
            replica.chosen_until.append(self._clock() + _CHOSEN_S)

    def reported(self, name: str, requests: int) -> None:
        """Stores a replica's report. `requests`: all its requests, the new one included."""
        if replica := self._replicas.get(name):
            self.others(name, max(0, requests - replica.own - 1))
            if replica.chosen_until:
                replica.chosen_until.popleft()

    def others(self, name: str, requests: int) -> None:
        """Stores the number of requests that a replica has from other ingresses."""
        if replica := self._replicas.get(name):
            replica.others = requests
            replica.others_until = self._clock() + _REPORT_S

    def took(self, name: str) -> None:
        """Counts a request that a replica has taken."""
        if replica := self._replicas.get(name):
            replica.own += 1

    def ended(self, name: str) -> None:
        """Counts the end of a request."""
        if replica := self._replicas.get(name):
            replica.own = max(0, replica.own - 1)


def _requests(replica: _Replica, now: float) -> int:
    chosen = replica.chosen_until
    while chosen and chosen[0] <= now:
        chosen.popleft()
    return replica.own + len(chosen) + (replica.others if now < replica.others_until else 0)
