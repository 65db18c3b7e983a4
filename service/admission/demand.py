"""How many replicas the requests of one ingress want, from what comes, what waits and what is being decoded.

    wanted = come / rate / 0.8 + waiting / (rate × target_queue_s)
    at least the places taken / places of a replica, / 0.8 while somebody waits

in blocks (a second), `rate` that of a replica at full load. The first part keeps up with what comes, the second works
off what has piled up. Without the last a burst that has been let in would lose the replicas under it, and full replicas
with a short queue would be noticed only when the average of what comes says so. What comes counts, not what is
decoded: replicas that work off a queue decode all they can, however many they are.
Knows no replicas and decides nothing: scaling.py adds the ingresses up, Serve waits and keeps the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

#: seconds after which what has come counts for 1/e
_MEMORY_S = 30.0
#: the part of a replica's rate that is planned with; the rest is for what comes unevenly
_UTILIZATION = 0.8
#: what anybody who is there wants; less than this is nothing, once nobody is
FEWEST = 0.01


@dataclass(frozen=True, slots=True)
class Load:
    """What an ingress has in hand: requests, those with a place, the blocks that wait; a place's full-load rate."""

    in_hand: int
    placed: int
    waiting_blocks: float
    rate_of_place: float | None


class Demand:
    """Told of every request that is let in. `places`: those of one replica."""

    def __init__(self, places: int, target_queue_s: float, clock: Callable[[], float]) -> None:
        self._places = places
        self._target_queue_s = target_queue_s
        self._clock = clock
        self._come, self._since = 0.0, clock()

    def came(self, blocks: float) -> None:
        """So many blocks were asked for."""
        self._come = self._remembered() + blocks
        self._since = self._clock()

    def wanted(self, load: Load, ratio: float) -> float:
        """Replicas, in parts. `ratio`: the part of the blocks asked for that gets decoded."""
        taken = load.placed / self._places
        if load.rate_of_place is None:
            wanted = taken / _UTILIZATION
        else:
            rate = load.rate_of_place * self._places
            flow = self._remembered() * ratio / _MEMORY_S / rate / _UTILIZATION
            full = taken / _UTILIZATION if load.waiting_blocks else taken
            wanted = max(full, flow + load.waiting_blocks / (rate * self._target_queue_s))
        return max(wanted, FEWEST) if load.in_hand else wanted if wanted > FEWEST else 0.0

    def _remembered(self) -> float:
        return self._come * math.exp((self._since - self._clock()) / _MEMORY_S)
