"""The order of waiting requests: fair between tenants, by priority and age within a tenant.

Between tenants the queue uses start-time fair queueing: serving a tenant moves its next turn back by `cost` ÷ `weight`.
Within a tenant, a request is ordered as if it had come `priority` × `_AGING_S` seconds later, so every request is
served at last. The engine's scheduler and the ingress both use this queue.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

#: a lower number is served sooner, as in vLLM
HIGHEST_PRIORITY, DEFAULT_PRIORITY, LOWEST_PRIORITY = 0, 5, 9
#: seconds of waiting that make up for one priority
_AGING_S = 10.0


@dataclass(frozen=True, slots=True)
class Ticket:
    """The order of a request. `arrived`: seconds of one clock. `priority`: lower is sooner. `cost`: work requested."""

    arrived: float
    tenant: str = ""
    weight: float = 1.0
    priority: int = DEFAULT_PRIORITY
    cost: float = 1.0


@dataclass(frozen=True, slots=True)
class _QueuedItem(Generic[T]):
    due: float
    cost: float
    item: T


@dataclass(slots=True)
class _TenantQueue(Generic[T]):
    """The requests of one tenant, in order. `start`: virtual time of its next turn. `since`: breaks ties."""

    start: float
    weight: float
    since: int
    entries: list[_QueuedItem[T]] = field(default_factory=list)


class FairQueue(Generic[T]):
    """Waiting requests."""

    def __init__(self) -> None:
        self._tenants: dict[str, _TenantQueue[T]] = {}
        self._now = 0.0  # virtual time: the turn of the tenant served last
        self._count = 0

    def __len__(self) -> int:
        return sum(len(tenant.entries) for tenant in self._tenants.values())

    def __iter__(self) -> Iterator[T]:
        """All waiting requests, tenant by tenant, each tenant's in order."""
        return iter([entry.item for tenant in self._tenants.values() for entry in tenant.entries])

    def push(self, item: T, ticket: Ticket) -> None:
        self._count += 1
        tenant = self._tenants.setdefault(ticket.tenant, _TenantQueue(self._now, ticket.weight, self._count))
        if not tenant.entries:
            tenant.start, tenant.since = max(self._now, tenant.start), self._count
        tenant.weight = ticket.weight
        entry = _QueuedItem(self._due(ticket), ticket.cost, item)
        insort(tenant.entries, entry, key=lambda entry: entry.due)  # behind entries that are due at the same time

    def peek(self) -> T | None:
        return self._tenants[names[0]].entries[0].item if (names := self.tenants) else None

    @property
    def tenants(self) -> list[str]:
        """The tenants that wait, the next one first."""
        waiting = [(tenant.start, tenant.since, name) for name, tenant in self._tenants.items() if tenant.entries]
        return [name for _, _, name in sorted(waiting)]

    def pop(self, name: str | None = None) -> T:
        """Removes and returns the next request, or a tenant's next request. IndexError without one."""
        tenant = self._tenants[self.tenants[0] if name is None else name]
        entry = tenant.entries.pop(0)
        self._now = max(self._now, tenant.start)
        tenant.start += entry.cost / tenant.weight
        self._forget()
        return entry.item

    def remove(self, item: T) -> bool:
        """Removes a request at no cost for its tenant. False if it is not in the queue."""
        for tenant in self._tenants.values():
            for index, entry in enumerate(tenant.entries):
                if entry.item is item:
                    del tenant.entries[index]
                    self._forget()
                    return True
        return False

    def waiting(self, tenant: str) -> int:
        return len(self._tenants[tenant].entries) if tenant in self._tenants else 0

    def share(self, ticket: Ticket) -> float:
        """The share of the service that the ticket's tenant gets among the tenants that wait now, itself included."""
        competing = sum(t.weight for name, t in self._tenants.items() if t.entries and name != ticket.tenant)
        return ticket.weight / (ticket.weight + competing)

    def ahead(self, ticket: Ticket) -> float:
        """The cost of all requests that would be served before a new request with this ticket."""
        cost, start = 0.0, self._now
        if tenant := self._tenants.get(ticket.tenant):
            index = bisect_right(tenant.entries, self._due(ticket), key=lambda entry: entry.due)
            cost, start = sum(entry.cost for entry in tenant.entries[:index]), max(start, tenant.start)
        turn = start + cost / ticket.weight
        competing = (other for name, other in self._tenants.items() if name != ticket.tenant)
        return cost + sum(
            min(sum(entry.cost for entry in other.entries), max(0.0, turn - other.start) * other.weight)
            for other in competing
        )

    def _due(self, ticket: Ticket) -> float:
        """The position within a tenant. All requests age equally, so the order of two is fixed when they arrive."""
        return ticket.arrived + ticket.priority * _AGING_S

    def _forget(self) -> None:
        """Drops tenants without requests whose next turn is not in the future; with an empty queue, all of them."""
        if not len(self):
            self._now = max((tenant.start for tenant in self._tenants.values()), default=self._now)
        self._tenants = {name: t for name, t in self._tenants.items() if t.entries or t.start > self._now}
