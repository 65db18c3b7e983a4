"""The replica for a prompt, chosen by cached prefixes and by load.

A request goes to the replica that served its longest known prefix. If several did, the least loaded one gets it; within
a session, the most recent one. A cached prefix attracts only a bounded share of all requests (consistent hashing with
bounded loads, Mirrokni, Thorup, Zadimoghaddam 2016). The others go by load, so popular prefixes spread.
"""

import random
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, get_args

from service.routing.keys import PrefixKeys

#: a replica with more than this many times the mean load gets no request for its cached prefix
BOUND = 1.25
#: a cached prefix counts only if it is at least this share of the prompt
MIN_SHARE = 0.25
#: the most prefixes that an ingress remembers, about 200 bytes each, and the most replicas of one
TABLE_KEYS, MAX_HOLDERS = 65_536, 16

_64_BITS = 2**64 - 1

#: why a replica was chosen: for its cached prefix; by load, since no replica has the prefix; by load, since all
#: replicas that have the prefix are overloaded
RoutingReason = Literal["prefix", "load", "overloaded"]
ROUTING_REASONS: tuple[RoutingReason, ...] = get_args(RoutingReason)


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """The replica for a request, and the reason."""

    replica: str
    reason: RoutingReason


class PrefixTable:
    """Key -> the replicas that have served the prefix, the most recent one last. At most `size` keys, the last used."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def longest(self, keys: PrefixKeys, min_share: float, alive: Container[str]) -> tuple[str, ...]:
        for key, share in zip(reversed(keys.keys), reversed(keys.shares), strict=True):
            if share < min_share:
                break
            if holders := self.holders(key, alive):
                return holders
        return ()

    def holders(self, key: int, alive: Container[str]) -> tuple[str, ...]:
        return tuple(name for name in self._holders.get(key, ()) if name in alive)

    def record(self, keys: PrefixKeys, replica: str) -> None:
        """Records that `replica` serves a prompt. The longest prefixes are the first to be dropped again."""
        for key in reversed(keys.keys):
            self._add(key, replica)
        if keys.session is not None:
            self._add(keys.session, replica)
        while len(self._holders) > self._size:
            self._holders.popitem(last=False)

    def _add(self, key: int, replica: str) -> None:
        holders = self._holders.get(key, ())
        if not holders or holders[-1] != replica:
            self._holders[key] = (*(name for name in holders if name != replica), replica)[-MAX_HOLDERS:]
        self._holders.move_to_end(key)


class Affinity:
    """The rules of routing, and the prefix table of one ingress. `slack`: requests above the mean that are allowed."""

    def __init__(self, slack: float, rng: random.Random | None = None) -> None:
        self._slack = slack
        self._table = PrefixTable(TABLE_KEYS)
        self._rng = rng or random.Random()  # noqa: S311
        self._hashes: dict[str, int] = {}

    def choose(self, keys: PrefixKeys, loads: Mapping[str, float]) -> RoutingDecision:
        """The replica for a prompt. `loads`: replica -> its requests, at least one replica."""
        latest = self._table.holders(keys.session, loads)[-1:] if keys.session is not None else ()
        holders = self._table.longest(keys, MIN_SHARE, loads)
        bound = self.bound(loads)
        if not latest and not holders:
            return RoutingDecision(self._unknown(keys, loads, bound), "load")
        for names in (latest, holders):
            if free := [name for name in names if loads[name] + 1 <= bound]:
                return RoutingDecision(self._least_loaded(free, loads, keys.home), "prefix")
        free = [name for name, load in loads.items() if load + 1 <= bound]
        return RoutingDecision(self._by_load(None, free or list(loads), loads), "overloaded")

    def record(self, keys: PrefixKeys, replica: str) -> None:
        self._table.record(keys, replica)

    def bound(self, loads: Mapping[str, float]) -> float:
        mean = (sum(loads.values()) + 1) / len(loads)
        return max(BOUND * mean, mean + self._slack)

    def _unknown(self, keys: PrefixKeys, loads: Mapping[str, float], bound: float) -> str:
        """The replica for an unknown prompt. A named session goes to its home replica, if the load allows."""
        if keys.session is not None and loads[home := self._home(keys.session, list(loads))] + 1 <= bound:
            return home
        return self._by_load(keys.home, list(loads), loads)

    def _by_load(self, home: int | None, names: Sequence[str], loads: Mapping[str, float]) -> str:
        first = self._home(home, names) if home is not None else self._rng.choice(names)
        if len(names) == 1:
            return first
        second = names[self._rng.randrange(len(names) - 1)]
        second = second if second != first else names[-1]
        return first if loads[first] <= loads[second] else second

    def _least_loaded(self, names: Sequence[str], loads: Mapping[str, float], home: int | None) -> str:
        minimum = min(loads[name] for name in names)
        return self._home(home or 0, [name for name in names if loads[name] == minimum])

    def _home(self, key: int, names: Sequence[str]) -> str:
        """The home of a key, by rendezvous hashing: if a replica comes or goes, only its own keys move."""
        return names[0] if len(names) == 1 else max(names, key=lambda name: _mixed(key ^ self._hash(name)))

    def _hash(self, name: str) -> int:
        if name not in self._hashes:
            self._hashes[name] = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
        return self._hashes[name]


def _mixed(bits: int) -> int:
    """Mixes 64 bits so that each bit depends on all given bits (the last steps of splitmix64)."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return bits ^ (bits >> 31)
