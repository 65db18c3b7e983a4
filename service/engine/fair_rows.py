"""How the rows of a forward are divided between the tenants that run.

A forward takes as long as all of its rows together. So a tenant with many rows would slow down a tenant with few, even
if no request waits. Here a forward takes at most as long as each tenant's own rows alone would, divided by the tenant's
share (its weight among all). Rows above that wait for the next forward. The price: forwards are smaller while tenants
of unlike size run, and a forward of few rows takes more time for each row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(slots=True)
class Load:
    """The rows that a tenant's requests could use in the next forward. `reading`: the time of their pages."""

    weight: float
    rows: int = 0
    reading: float = 0.0


def fair_rows(loads: Mapping[str, Load], price: Callable[[int], float], most: int) -> dict[str, int]:
    """The rows that each tenant may have in a forward of at most `most` rows. Empty: all rows may be in it.

    `price`: a forward's time by its rows, without `reading`, in the same unit; more rows never take less.
    """
    rows, weights = [load.rows for load in loads.values()], [load.weight for load in loads.values()]
    reading = sum(load.reading for load in loads.values()) / sum(rows)
    longest = sum(weights) * min((price(load.rows) + load.reading) / load.weight for load in loads.values())
    total = bisect_right(range(1, most + 1), longest, key=lambda count: price(count) + count * reading)
    if sum(rows) <= total:
        return {}
    return {tenant: max(1, share) for tenant, share in zip(loads, shares(rows, total, weights), strict=True)}


def shares(wanted: Sequence[int], total: int, weights: Sequence[float] = ()) -> list[int]:
    """Divides a total by weights (none: equally), each share at most as large as requested.

    Each gets at least one. If the total is smaller, the first ones get one.
    """
    if total < len(wanted):
        return [int(index < total) for index in range(len(wanted))]
    result, weights = [0] * len(wanted), weights or [1] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index] / weights[index])
    sums = [*accumulate(weights[index] for index in reversed(order))]
    for rest, index in zip(reversed(range(len(order))), order, strict=True):
        share = int(total * weights[index] / sums[rest]) if rest else total
        result[index] = min(wanted[index], max(1, min(share, total - rest)))  # one is left for each of the rest
        total -= result[index]
    return result
