"""The compiled grammars that are kept, by the memory that they take, and for a while the reasons of those refused."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple

from service.constraints.matcher import GuidanceGrammar
from service.constraints.trials import MAX_BYTES
from service.errors import InvalidRequest

#: all of them together, and those that one tenant's requests brought
_BYTES, _SHARE = 4 * MAX_BYTES, MAX_BYTES
#: the least that a grammar counts, which bounds their number
_LEAST = 256 * 1024
#: A reason may have been the load of the machine. The answers of one request come within seconds.
_REFUSED_S = 60.0


class _Kept(NamedTuple):
    tenant: str
    result: GuidanceGrammar | InvalidRequest
    size: int
    since: float


class GrammarCache:
    """Those last used, within `_BYTES` in all and `_SHARE` of one tenant."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._sizes: Counter[str] = Counter()
        self._clock = clock

    def get(self, key: Hashable) -> GuidanceGrammar | InvalidRequest | None:
        """What is kept, which is then the last one used."""
        if (kept := self._kept.get(key)) is None:
            return None
        if isinstance(kept.result, InvalidRequest) and self._clock() - kept.since > _REFUSED_S:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return kept.result

    def add(self, key: Hashable, tenant: str, result: GuidanceGrammar | InvalidRequest, size: int = 0) -> None:
        """Keeps what takes so many bytes, and drops what is too much then."""
        if key in self._kept:
            self._drop(key)
        size = max(_LEAST, size)
        while self._sizes[tenant] and self._sizes[tenant] + size > _SHARE:
            self._drop(next(key for key, kept in self._kept.items() if kept.tenant == tenant))
        while self._kept and self._sizes.total() + size > _BYTES:
            self._drop(next(iter(self._kept)))
        self._kept[key] = _Kept(tenant, result, size, self._clock())
        self._sizes[tenant] += size

    def _drop(self, key: Hashable) -> None:
        dropped = self._kept.pop(key)
        self._sizes[dropped.tenant] -= dropped.size
        self._sizes = +self._sizes
