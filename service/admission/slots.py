"""The places at the replicas. Each running request has one; the other requests wait in a fair queue.

A request frees its place when it ends, however it ends. A freed place, or a call of `resize`, wakes waiting requests.

Where several tenants share the places, none gets all: a tenant has at most `_PER_FREE` places for each that is left
free (dynamic thresholds, Choudhury and Hahne, 1998), weighted among the tenants that are there. So the request of
another tenant is decoded at once, however many requests of however many others run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field

from service.admission.throughput import Throughput
from service.errors import MrpServeError
from service.fair_queue import Claim, FairQueue

#: places that a tenant may have for each that is free: one tenant gets 8/9 of all, two get 8/17 each
_PER_FREE = 8.0


@dataclass(eq=False, slots=True)
class Waiter:
    """One waiting request. `has_place`: a place is taken for it, even if it is being cancelled."""

    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    has_place: bool = False


@dataclass(slots=True)
class _Tenant:
    """A tenant that is there. `requests`: those that wait or have a place. `held`: its places."""

    weight: float
    requests: int = 0
    held: int = 0


class Slots:
    """Gives out places. `resize` sets their number; before the first call every request waits.

    `shared`: whether other tenants may come, so that no tenant gets all places.
    """

    def __init__(self, queue: FairQueue[Waiter], throughput: Throughput, shared: bool = False) -> None:
        self._queue, self._throughput, self._shared = queue, throughput, shared
        self._places = self._decoded = self._used = 0
        self._tenants: dict[str, _Tenant] = {}

    @property
    def used(self) -> int:
        """The number of places taken. While a request waits: all that its tenant may not have, too."""
        return max(self._used, self._places) if len(self._queue) else self._used

    def resize(self, places: int) -> None:
        """Sets the number of places. If more are taken, no request gets one until enough have ended."""
        if places != self._places:
            self._places, self._decoded = places, decoded_of(places)
            self._changed()

    async def enter(self, claim: Claim, timeout_s: float, on_wait: Callable[[], None] = lambda: None) -> None:
        """Waits for a place and takes it; `leave` must follow. TimeoutError after `timeout_s` without a place.

        `on_wait` is called if no place is free now.
        """
        waiter = Waiter()
        tenant = self._tenants.setdefault(claim.tenant, _Tenant(claim.weight))
        tenant.requests += 1
        self._queue.push(waiter, claim)
        try:
            self._changed()
            if not waiter.has_place:
                on_wait()
                async with asyncio.timeout(timeout_s):
                    await waiter.turn
        except BaseException:
            if waiter.has_place:  # the place came after the timeout or the cancellation
                self.leave(claim.tenant)
            else:
                self._queue.remove(waiter)
                self._gone(claim.tenant)
                self._changed()
            raise

    def turn_away(self, error: MrpServeError) -> None:
        """If there are no places, ends every waiting request with a copy of `error`.

        Each gets a copy, since tasks that raise the same object at the same time extend one traceback.
        """
        if not self._places:
            for waiter in self._queue:
                if not waiter.turn.done():
                    waiter.turn.set_exception(copy(error))

    def leave(self, name: str) -> None:
        """Frees a place of a tenant."""
        self._used -= 1
        self._tenants[name].held -= 1
        self._gone(name)
        self._changed()

    def _gone(self, name: str) -> None:
        tenant = self._tenants[name]
        tenant.requests -= 1
        if not tenant.requests:
            del self._tenants[name]

    def _changed(self) -> None:
        """Gives free places to the requests whose turn it is."""
        while self._used < self._places and (name := self._next()) is not None:
            waiter = self._queue.pop(name)
            waiter.has_place = True
            self._used += 1
            self._tenants[name].held += 1
            if not waiter.turn.done():  # done: the request is being cancelled and frees its place itself
                waiter.turn.set_result(None)
        self._throughput.occupied(self.used, self._places)

    def _next(self) -> str | None:
        """The tenant whose turn it is, None if none may have another place."""
        if not self._shared:
            return next(iter(self._queue.tenants), None)
        weights = sum(tenant.weight for tenant in self._tenants.values())
        free = self._decoded - self._used - 1
        for name in self._queue.tenants:
            tenant = self._tenants[name]
            share = tenant.weight * len(self._tenants) / weights
            if not tenant.held or tenant.held + 1 <= _PER_FREE * share * free:
                return name
        return None


def decoded_of(places: int) -> int:
    """Requests that are decoded at once, of those that replicas take (`settings.slots_of`)."""
    return places - max(1, places // 5) if places > 1 else places
