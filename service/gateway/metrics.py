"""GET /metrics: the page, and a limit for values that anybody may ask for. /health and /metrics ask every replica."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from service.messages.replica_status import Snapshot

_T = TypeVar("_T")

#: values a second, and those that may be made at once after a pause
_RATE: Final = 10.0
_BURST: Final = 20


class Throttled(Generic[_T]):
    """Makes a new value for whoever asks, but at most 10 a second. Above that, the last value is the answer.

    Whoever asks while a value is being made gets that one. `clock`: seconds.
    """

    def __init__(self, make: Callable[[], Awaitable[_T]], clock: Callable[[], float] = time.monotonic) -> None:
        self._make, self._clock = make, clock
        self._last: asyncio.Future[_T] | None = None
        self._due = clock()

    async def __call__(self) -> _T:
        now = self._clock()
        if self._last is None or (self._last.done() and self._due <= now + _BURST / _RATE):
            self._due = max(self._due, now) + 1 / _RATE
            self._last = asyncio.ensure_future(self._make())
        return await asyncio.shield(self._last)


_WAITING = "mrp_num_requests_waiting"


def expose(ingresses: Sequence[Snapshot], replicas: Sequence[Snapshot]) -> bytes:
    """One page of metrics.

    A request that an ingress has and no replica has is waiting: for a slot, or for a link to a replica.
    """
    queued = sum(snapshot.in_flight for snapshot in ingresses) - sum(snapshot.in_flight for snapshot in replicas)
    families: dict[str, list[str]] = {}
    for snapshot in (*replicas, *ingresses):
        for family in snapshot.families:
            families.setdefault(family.name, [family.head]).append(family.samples)
    if _WAITING in families:
        families[_WAITING].append(f'{_WAITING}{{replica="queue"}} {float(max(0, queued))}\n')
    return "".join(part for parts in families.values() for part in parts).encode()
