"""The number of requests at every replica, as one ingress knows it.

The ingress counts its own requests exactly, from the choice of the replica on. A replica reports the requests of other
ingresses with every item of an answer. The ingress drops such a report after a few seconds: a replica that seems busy
gets no requests and so would never report again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

#: seconds for which a replica's report is used
_REPORT_S = 5.0


@dataclass(slots=True)
class _Replica:
    ours: int = 0
    others: int = 0
    others_until: float = 0.0


class InflightCounts:
    """Counts requests. Its methods get every choice of a replica, every report and every end of a request."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._replicas: dict[str, _Replica] = {}

    def now(self) -> dict[str, int]:
        """Replica -> number of requests."""
        now = self._clock()
        return {
            name: replica.ours + (replica.others if now < replica.others_until else 0)
            for name, replica in self._replicas.items()
        }

    def set_replicas(self, names: Iterable[str]) -> None:
        """Sets the names of the replicas. Known replicas keep their counts."""
        self._replicas = {name: self._replicas.get(name) or _Replica() for name in names}

    def remove(self, name: str) -> None:
        """Removes a replica."""
        self._replicas.pop(name, None)

    def add(self, name: str) -> None:
        """Counts a request that a replica was chosen for."""
        if replica := self._replicas.get(name):
            replica.ours += 1

    def end(self, name: str) -> None:
        """Counts the end of a request."""
        if replica := self._replicas.get(name):
            replica.ours = max(0, replica.ours - 1)

    def set_others(self, name: str, requests: int) -> None:
        """Stores the number of requests that a replica has from other ingresses."""
        if replica := self._replicas.get(name):
            replica.others = requests
            replica.others_until = self._clock() + _REPORT_S
