"""Chooses the replica of each request of one ingress, by cached prefixes and by load, and counts the requests."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from service.messages.wire import ReplicaRequest
from service.routing.affinity import Affinity, RoutingReason
from service.routing.keys import PrefixKeys, prefix_keys

#: share of its slots by which a replica's load may exceed the mean because of its cached prefixes
_SLACK = 1 / 16
#: seconds for which a replica's report is used
_REPORT_S = 5.0


@dataclass(slots=True)
class _ReplicaLoad:
    """The requests at a replica, as one ingress knows them."""

    own_requests: int = 0  # of this ingress
    other_requests: int = 0  # of other ingresses, valid until `expiry`
    expiry: float = 0.0


class InflightCounts:
    """The number of requests at every replica, as one ingress knows it.

    The ingress counts its own requests exactly. A replica reports the requests of others with every item. A report
    expires after a few seconds: a replica that seems busy gets no requests and so would never report again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._replicas: dict[str, _ReplicaLoad] = {}
        self._resting: Collection[str] = ()

    def now(self) -> dict[str, int]:
        """The requests of every replica that takes new ones."""
        now = self._clock()
        return {
            name: replica.own_requests + (replica.other_requests if now < replica.expiry else 0)
            for name, replica in self._replicas.items()
            if name not in self._resting
        }

    def set_replicas(self, names: Iterable[str], resting: Collection[str] = ()) -> None:
        """`resting`: replicas that get no new requests."""
        self._resting = resting
        self._replicas = {name: self._replicas.get(name) or _ReplicaLoad() for name in names}

    def remove(self, name: str) -> None:
        self._replicas.pop(name, None)

    def add(self, name: str) -> None:
        if replica := self._replicas.get(name):
            replica.own_requests += 1

    def end(self, name: str) -> None:
        if replica := self._replicas.get(name):
            replica.own_requests = max(0, replica.own_requests - 1)

    def set_others(self, name: str, requests: int) -> None:
        if replica := self._replicas.get(name):
            replica.other_requests = requests
            replica.expiry = self._clock() + _REPORT_S


def slack(slots: int) -> int:
    """Requests above the mean that a replica with this number of slots may always have."""
    return max(1, round(slots * _SLACK))


class Router:
    """The choice of replicas. `inflight`: the replicas by name, and their requests.

    `slack`: requests above the mean that a replica may always have. `by_prefix`: whether prefixes count. `on_route`
    then gets every reason. `later`: calls a function when no request waits for it.
    """

    def __init__(
        self,
        slack: float,
        by_prefix: bool,
        on_route: Callable[[RoutingReason], None],
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[Callable[[], object]], object] = lambda do: do(),
    ) -> None:
        self._affinity, self.inflight = Affinity(slack), InflightCounts(clock)
        self._by_prefix, self._on_route, self._later = by_prefix, on_route, later

    def choose(self, request: ReplicaRequest) -> str | None:
        """The replica for a request, which counts from now on. None if there is no replica.

        A further attempt goes by load: the replica that lost the last attempt may look idle and hold the prefix.
        """
        if not (loads := self.inflight.now()):
            return None
        if len(loads) == 1:
            [name] = loads
            self._later(partial(self._by_rules, request, loads))  # the prefixes count once there are two replicas
        else:
            name = self._by_rules(request, loads)
        self.inflight.add(name)
        return name

    def _by_rules(self, request: ReplicaRequest, loads: Mapping[str, float]) -> str:
        keys = prefix_keys(request) if self._by_prefix and not request.attempt else PrefixKeys()
        decision = self._affinity.choose(keys, loads)
        self._affinity.record(keys, decision.replica)
        if self._by_prefix and not request.attempt:
            self._on_route(decision.reason)
        return decision.replica
