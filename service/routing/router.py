"""Chooses the replica of each request of one ingress, by cached prefixes and by load, and counts the requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from service.routing.affinity import Affinity, RoutingReason
from service.routing.keys import PrefixKeys, prefix_keys
from service.routing.loads import InflightCounts
from service.wire import ReplicaRequest

#: share of its slots by which a replica's load may exceed the mean because of its cached prefixes
_SLACK = 1 / 16


def slack(slots: int) -> int:
    """Requests above the mean that a replica with this number of slots may always have."""
    return max(1, round(slots * _SLACK))


class Router:
    """The replicas by name. `slack`: requests above the mean that a replica may always have.

    `by_prefix`: whether a replica that has a prompt's prefix is preferred. `on_route` then gets every reason.
    `later`: calls a function when no request waits for it.
    """

    def __init__(
        self,
        slack: float,
        by_prefix: bool,
        on_route: Callable[[RoutingReason], None],
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[Callable[[], object]], object] = lambda do: do(),
    ) -> None:
        self._affinity, self._inflight = Affinity(slack), InflightCounts(clock)
        self._by_prefix, self._on_route, self._later = by_prefix, on_route, later

    def set_replicas(self, names: Iterable[str]) -> None:
        """Sets the replicas to choose from. Known ones keep their counts."""
        self._inflight.set_replicas(names)

    def remove(self, name: str) -> None:
        """Removes a replica."""
        self._inflight.remove(name)

    def choose(self, request: ReplicaRequest) -> str | None:
        """The replica for a request, whose request counts from now on. None if there is no replica.

        A further attempt goes by load: the replica that lost the last attempt may look idle and hold the prefix.
        """
        if not (loads := self._inflight.now()):
            return None
        if len(loads) == 1:
            [name] = loads
            self._later(partial(self._by_rules, request, loads))  # the prefixes count once there are two replicas
        else:
            name = self._by_rules(request, loads)
        self._inflight.add(name)
        return name

    def _by_rules(self, request: ReplicaRequest, loads: Mapping[str, float]) -> str:
        keys = prefix_keys(request) if self._by_prefix and not request.attempt else PrefixKeys()
        decision = self._affinity.choose(keys, loads)
        self._affinity.record(keys, decision.replica)
        if self._by_prefix and not request.attempt:
            self._on_route(decision.reason)
        return decision.replica

    def ended(self, name: str) -> None:
        """Counts the end of a request."""
        self._inflight.end(name)

    def others(self, name: str, requests: int) -> None:
        """Stores the number of requests that a replica has from other ingresses."""
        self._inflight.set_others(name, requests)
