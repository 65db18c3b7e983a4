"""Which replica a prompt goes to: pure rules over loads, no Ray, no time.

Who has served its longest known beginning gets it, the least loaded one of several, and of a session the latest; but
no replica gets more than its bounded share of all requests (consistent hashing with bounded loads, Mirrokni, Thorup,
Zadimoghaddam 2016) because of what it has. What is above that goes by load, and who takes it has the
beginning too from then on: popular ones spread by demand.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, get_args

from service.routing.keys import PrefixKeys
from service.routing.table import PrefixTable

#: how many times the mean a replica may have to do before what it holds no longer counts
BOUND = 1.25
#: less of a prompt than this is not worth a replica that has more to do
LEAST_SHARE = 0.25
#: beginnings an ingress remembers; some 200 bytes each
TABLE_KEYS = 65_536

_64_BITS = 2**64 - 1

#: by what a request found its replica: what it has, load as nobody has it, or load as all who have it are overloaded
How = Literal["prefix", "load", "overloaded"]
HOW: tuple[How, ...] = get_args(How)


@dataclass(frozen=True, slots=True)
class Choice:
    """Replicas to be tried one after the other, and what the first was chosen by."""

    replicas: tuple[str, ...]
    how: How


class Affinity:
    """The rules over one table. `slack`: requests above the mean that a replica may always have."""

    def __init__(self, slack: float, size: int = TABLE_KEYS, rng: random.Random | None = None) -> None:
        self._slack = slack
        self._table = PrefixTable(size)
        self._rng = rng or random.Random()  # noqa: S311
        self._places: dict[str, int] = {}

    def choose(self, keys: PrefixKeys, loads: Mapping[str, float]) -> Choice:
        """Where a prompt goes. `loads`: requests at every replica there is, at least one."""
        latest = self._table.holders(keys.session, loads)[-1:] if keys.session is not None else ()
        holders = self._table.longest(keys, LEAST_SHARE, loads)
        bound = self.bound(loads)
        if not latest and not holders:
            return Choice(self._unknown(keys, loads, bound), "load")
        for known in (latest, holders):
            if free := [name for name in known if loads[name] + 1 <= bound]:
                return Choice((self._least_loaded(free, loads, keys.home),), "prefix")
        others = [name for name, load in loads.items() if load + 1 <= bound]
        return Choice(self._by_load(None, others or list(loads), loads), "overloaded")

    def learn(self, keys: PrefixKeys, replica: str) -> None:
        """A replica has taken the prompt."""
        self._table.learn(keys, replica)

    def bound(self, loads: Mapping[str, float]) -> float:
        """The most requests a replica may have, the new one included, to get it for what it has."""
        mean = (sum(loads.values()) + 1) / len(loads)
        return max(BOUND * mean, mean + self._slack)

    def _unknown(self, keys: PrefixKeys, loads: Mapping[str, float], bound: float) -> tuple[str, ...]:
        """Where a prompt goes of which nothing is known. A named session goes home if it can.

        By load two ingresses that see it for the first time in different moments would disagree for good.
        """
        if keys.session is not None and loads[home := self._home(keys.session, list(loads))] + 1 <= bound:
            return (home,)
        return self._by_load(keys.home, list(loads), loads)

    def _by_load(self, home: int | None, names: Sequence[str], loads: Mapping[str, float]) -> tuple[str, ...]:
        """The power of two choices. The first is the key's home: other ingresses find the same one."""
        first = self._home(home, names) if home is not None else self._rng.choice(names)
        if len(names) == 1:
            return (first,)
        second = names[self._rng.randrange(len(names) - 1)]
        second = second if second != first else names[-1]
        return (first, second) if loads[first] <= loads[second] else (second, first)

    def _least_loaded(self, names: Sequence[str], loads: Mapping[str, float], home: int | None) -> str:
        least = min(loads[name] for name in names)
        return self._home(home or 0, [name for name in names if loads[name] == least])

    def _home(self, key: int, names: Sequence[str]) -> str:
        """Rendezvous hashing: when replicas come and go, only their own keys move."""
        return names[0] if len(names) == 1 else max(names, key=lambda name: _mixed(key ^ self._place(name)))

    def _place(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
        return self._places[name]


def _mixed(bits: int) -> int:
    """64 bits of which each hangs on all of the given ones (the end of splitmix64)."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return bits ^ (bits >> 31)
