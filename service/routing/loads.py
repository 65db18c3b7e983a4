"""How many requests every replica has, as far as one process can know.

Its own are counted exactly, from the choice on. Those of other ingresses are what a replica says when it takes a
request; that is out of date at once, so it is forgotten after a while: who looks busy gets no requests and would
never be heard of again. The clock is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

#: seconds for which a replica's word on other ingresses holds, and in which a chosen replica must have been asked
_SAID_S = 5.0
_PROMISED_S = 2.0


@dataclass(slots=True)
class _Replica:
    own: int = 0
    others: int = 0
    others_until: float = 0.0
    promised_until: deque[float] = field(default_factory=deque)


class Loads:
    """Told of every choice, every answer to it and every end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._replicas: dict[str, _Replica] = {}

    def now(self) -> dict[str, int]:
        """Replica -> requests."""
        now = self._clock()
        return {name: _requests(replica, now) for name, replica in self._replicas.items()}

    def are(self, names: Iterable[str]) -> None:
        """These are the replicas from now on."""
        self._replicas = {name: self._replicas.get(name) or _Replica() for name in names}

    def lost(self, name: str) -> None:
        """A replica is gone."""
        self._replicas.pop(name, None)

    def promised(self, name: str) -> None:
        """A replica was chosen and will be asked: requests that come at the same time shall see each other."""
        if replica := self._replicas.get(name):
            replica.promised_until.append(self._clock() + _PROMISED_S)

    def said(self, name: str, requests: int) -> None:
        """A replica that was asked says how many requests it has, with the new one."""
        if replica := self._replicas.get(name):
            replica.others = max(0, requests - replica.own - 1)
            replica.others_until = self._clock() + _SAID_S
            if replica.promised_until:
                replica.promised_until.popleft()

    def took(self, name: str) -> None:
        """A replica has taken a request."""
        if replica := self._replicas.get(name):
            replica.own += 1

    def ended(self, name: str) -> None:
        """A request has ended."""
        if replica := self._replicas.get(name):
            replica.own = max(0, replica.own - 1)


def _requests(replica: _Replica, now: float) -> int:
    promised = replica.promised_until
    while promised and promised[0] <= now:
        promised.popleft()
    return replica.own + len(promised) + (replica.others if now < replica.others_until else 0)
