"""Chooses the replica of each request of one ingress, by cached prefixes and by load, and counts the requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from service.routing.affinity import Affinity, How
from service.routing.keys import PrefixKeys, prefix_keys
from service.routing.loads import Loads
from service.wire import Work

#: share of its places by which a replica's load may exceed the mean because of its cached prefixes
_SLACK = 1 / 16


def slack(places: int) -> int:
    """Requests above the mean that a replica with so many places may always have."""
    return max(1, round(places * _SLACK))


class Router:
    """The replicas by name. `slack`: requests above the mean that a replica may always have.

    `by_prefix`: whether a replica that has a prompt's prefix is preferred; `routed` then gets how each was chosen.
    `later`: does what a request need not wait for.
    """

    def __init__(
        self,
        slack: float,
        by_prefix: bool,
        routed: Callable[[How], None],
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[Callable[[], object]], object] = lambda do: do(),
    ) -> None:
        self._affinity, self._loads = Affinity(slack), Loads(clock)
        self._by_prefix, self._routed, self._later = by_prefix, routed, later

    def set_replicas(self, names: Iterable[str]) -> None:
        """Sets the replicas to choose from. Known ones keep their counts."""
        self._loads.set_replicas(names)

    def remove(self, name: str) -> None:
        """Removes a replica."""
        self._loads.remove(name)

    def choose(self, work: Work) -> str | None:
        """The replica for a work, whose request counts from now on. None if there is no replica.

        A further attempt goes by load: the replica that lost the last attempt may look idle and hold the prefix.
        """
        if not (loads := self._loads.now()):
            return None
        if len(loads) == 1:
            [name] = loads
            self._later(partial(self._by_rules, work, loads))  # what it learns counts when there are two
        else:
            name = self._by_rules(work, loads)
        self._loads.took(name)
        return name

    def _by_rules(self, work: Work, loads: Mapping[str, float]) -> str:
        keys = prefix_keys(work) if self._by_prefix and not work.attempt else PrefixKeys()
        choice = self._affinity.choose(keys, loads)
        name = choice.replicas[0]
        self._affinity.learn(keys, name)
        if self._by_prefix and not work.attempt:
            self._routed(choice.how)
        return name

    def ended(self, name: str) -> None:
        """Counts the end of a request."""
        self._loads.ended(name)

    def others(self, name: str, requests: int) -> None:
        """Stores the number of requests that a replica has from other ingresses."""
        self._loads.others(name, requests)
