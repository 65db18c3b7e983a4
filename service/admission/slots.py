"""The slots at the replicas. Each running request has one; the other requests wait in a fair queue.

Where several tenants share the slots, none gets all: a tenant has at most `_PER_FREE` slots for each free slot
(dynamic thresholds, Choudhury and Hahne, 1998), weighted among the tenants with requests. So the request of a further
tenant is decoded at once, however many requests of other tenants run.
"""

import asyncio
from copy import copy
from dataclasses import dataclass, field

from service.admission.throughput import Throughput
from service.errors import MrpServeError
from service.fair_queue import FairQueue, Ticket

#: slots that a tenant may have for each that is free: one tenant gets 8/9 of all, two get 8/17 each
_PER_FREE = 8.0


@dataclass(eq=False, slots=True)
class Waiter:
    """One waiting request. `has_slot`: a slot is taken for it, even if it is being cancelled."""

    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    has_slot: bool = False


@dataclass(slots=True)
class _TenantSlots:
    """A tenant with requests. `requests`: its waiting and running requests. `held`: its slots."""

    weight: float
    requests: int = 0
    held: int = 0


class Slots:
    """Gives out slots. `total`: their number, set by `resize`. `shared`: no tenant gets all, since others may come."""

    def __init__(self, queue: FairQueue[Waiter], throughput: Throughput, shared: bool = False) -> None:
        self._queue, self._throughput, self.shared = queue, throughput, shared
        self.total = self._decoded = self._used = 0
        self._tenants: dict[str, _TenantSlots] = {}

    @property
    def used(self) -> int:
        """The number of slots taken. While a request waits, the slots that its tenant may not have count, too."""
        return max(self._used, self.total) if len(self._queue) else self._used

    def resize(self, slots: int) -> None:
        """Sets the number of slots. If more are taken, no request gets one until enough have ended."""
        if slots != self.total:
            # the requests that are decoded at once while all slots are taken (`settings.slots_of`)
            self.total, self._decoded = slots, slots - max(1, slots // 5) if slots > 1 else slots
            self._grant()

    async def enter(self, ticket: Ticket, timeout_s: float) -> None:
        """Waits for a slot and takes it; `leave` must follow. TimeoutError after `timeout_s` without a slot."""
        waiter = Waiter()
        tenant = self._tenants.setdefault(ticket.tenant, _TenantSlots(ticket.weight))
        tenant.requests += 1
        self._queue.push(waiter, ticket)
        try:
            self._grant()
            if not waiter.has_slot:
                async with asyncio.timeout(timeout_s):
                    await waiter.turn
        except BaseException:
            if waiter.has_slot:  # the slot came after the timeout or the cancellation
                self.leave(ticket.tenant)
            else:
                self._queue.remove(waiter)
                self._remove_request(ticket.tenant)
                self._grant()
            raise

    def reject_waiting(self, error: MrpServeError) -> None:
        """If there are no slots, ends every waiting request with its own copy of `error`."""
        if not self.total:
            for waiter in self._queue:
                if not waiter.turn.done():
                    waiter.turn.set_exception(copy(error))

    def leave(self, name: str) -> None:
        self._used -= 1
        self._tenants[name].held -= 1
        self._remove_request(name)
        self._grant()

    def _remove_request(self, name: str) -> None:
        self._tenants[name].requests -= 1
        if not self._tenants[name].requests:
            del self._tenants[name]

    def _grant(self) -> None:
        while self._used < self.total and (name := self._next()) is not None:
            waiter = self._queue.pop(name)
            waiter.has_slot = True
            self._used += 1
            self._tenants[name].held += 1
            if not waiter.turn.done():  # done: the request is being cancelled and frees its slot itself
                waiter.turn.set_result(None)
        self._throughput.occupied(self._used, self.total, has_waiting=len(self._queue) > 0)

    def _next(self) -> str | None:
        """The tenant whose turn it is, None if none may have another slot."""
        if not self.shared:
            return next(iter(self._queue.tenants), None)
        weights = sum(tenant.weight for tenant in self._tenants.values())
        free = self._decoded - self._used - 1
        for name in self._queue.tenants:
            tenant = self._tenants[name]
            share = tenant.weight * len(self._tenants) / weights
            if not tenant.held or tenant.held + 1 <= _PER_FREE * share * free:
                return name
        return None
