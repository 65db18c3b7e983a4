"""The order in which waiting requests get their turn: fair between tenants, by priority and age inside one.

Between tenants it is start-time fair queueing: what a tenant is given (`cost` ÷ `weight`) moves its next turn back,
so whoever floods the queue waits behind himself. Inside a tenant a request stands as if it had come `priority` ×
`aging_s` later, so waiting `aging_s` is worth one priority and nobody starves. Knows no clock and nothing of what
it holds: the engine's scheduler and the service's front use the same.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

#: lower is sooner, as in vLLM
HIGHEST_PRIORITY, DEFAULT_PRIORITY, LOWEST_PRIORITY = 0, 5, 9
#: one priority is worth this many seconds of waiting
AGING_S = 10.0


@dataclass(frozen=True, slots=True)
class Claim:
    """What a place in the queue hangs on. `priority`: lower is sooner. `cost`: work asked for. `arrived`: seconds."""

    arrived: float
    tenant: str = ""
    weight: float = 1.0
    priority: int = DEFAULT_PRIORITY
    cost: float = 1.0


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    due: float
    number: int
    cost: float
    item: T

    @property
    def order(self) -> tuple[float, int]:
        return self.due, self.number


@dataclass(slots=True)
class _Tenant(Generic[T]):
    """One tenant's line. `start`: the virtual time of its next turn; `since`: which came first of equals."""

    start: float
    weight: float
    since: int
    entries: list[_Entry[T]] = field(default_factory=list)

    @property
    def turn(self) -> tuple[float, int]:
        return self.start, self.since

    @property
    def backlog(self) -> float:
        return sum(entry.cost for entry in self.entries)


class FairQueue(Generic[T]):
    """Requests that wait. `aging_s`: how long a wait makes up for one priority."""

    def __init__(self, aging_s: float = AGING_S) -> None:
        self._aging_s = aging_s
        self._tenants: dict[str, _Tenant[T]] = {}
        self._now = 0.0  # virtual time: the turn of whoever was served last
        self._count = 0

    def __len__(self) -> int:
        return sum(len(tenant.entries) for tenant in self._tenants.values())

    def __iter__(self) -> Iterator[T]:
        """Everything that waits, tenant after tenant, each in its order."""
        return iter([entry.item for tenant in self._tenants.values() for entry in tenant.entries])

    def push(self, item: T, claim: Claim) -> None:
        """Puts a request into its tenant's line."""
        self._count += 1
        tenant = self._tenants.setdefault(claim.tenant, _Tenant(self._now, claim.weight, self._count))
        if not tenant.entries:
            tenant.start, tenant.since = max(self._now, tenant.start), self._count
        tenant.weight = claim.weight
        insort(tenant.entries, _Entry(self._due(claim), self._count, claim.cost, item), key=lambda entry: entry.order)

    def peek(self) -> T | None:
        """Whose turn it is; None when nobody waits."""
        tenant = self._next()
        return tenant.entries[0].item if tenant else None

    def pop(self) -> T:
        """Takes out whose turn it is. IndexError when nobody waits."""
        tenant = self._next()
        if tenant is None:
            raise IndexError("nobody waits")
        entry = tenant.entries.pop(0)
        self._now = tenant.start
        tenant.start += entry.cost / tenant.weight
        self._forget()
        return entry.item

    def remove(self, item: T) -> bool:
        """Takes a request out, which costs its tenant nothing; False when it is not there."""
        for tenant in self._tenants.values():
            for index, entry in enumerate(tenant.entries):
                if entry.item is item:
                    del tenant.entries[index]
                    self._forget()
                    return True
        return False

    def waiting(self, tenant: str) -> int:
        """How many requests of a tenant wait."""
        return len(self._tenants[tenant].entries) if tenant in self._tenants else 0

    def share(self, claim: Claim) -> float:
        """What part of the service the claim's tenant gets among those that wait now, itself counted."""
        others = sum(t.weight for name, t in self._tenants.items() if t.entries and name != claim.tenant)
        return claim.weight / (claim.weight + others)

    def ahead(self, claim: Claim) -> float:
        """The cost of what would be served before a request that came now with this claim."""
        own, start = 0.0, self._now
        if tenant := self._tenants.get(claim.tenant):
            place = bisect_right(tenant.entries, self._due(claim), key=lambda entry: entry.due)
            own, start = sum(entry.cost for entry in tenant.entries[:place]), max(start, tenant.start)
        turn = start + own / claim.weight
        others = (other for name, other in self._tenants.items() if name != claim.tenant)
        return own + sum(min(other.backlog, max(0.0, turn - other.start) * other.weight) for other in others)

    def _due(self, claim: Claim) -> float:
        """Ageing at one pace for all keeps the order of any two, so it is fixed when they come."""
        return claim.arrived + claim.priority * self._aging_s

    def _next(self) -> _Tenant[T] | None:
        return min((t for t in self._tenants.values() if t.entries), key=lambda tenant: tenant.turn, default=None)

    def _forget(self) -> None:
        """Drops tenants that wait for nothing and owe nothing; when nobody waits nobody owes."""
        if not len(self):
            self._now = max((tenant.start for tenant in self._tenants.values()), default=self._now)
        self._tenants = {name: t for name, t in self._tenants.items() if t.entries or t.start > self._now}
