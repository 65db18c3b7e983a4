"""The number of replicas that one ingress needs, from the arrival rate, the queue and the requests being decoded.

    wanted = arrivals / rate / 0.8 + waiting / (rate * target_queue_s)
    at least: places taken / places of a replica, divided by 0.8 while a request waits

`arrivals`: blocks requested per second. `rate`: blocks per second of a replica at full load. `waiting`: blocks.

The first term serves the new requests, the second term empties the queue. The lower bound keeps replicas that are
still decoding a past burst. It also reacts to full replicas before the 30-second average does.
The formula uses the arrivals, not the blocks decoded: while a queue is emptied, any number of replicas is fully busy.
`rayserve/scaling.py` adds up all ingresses. Ray Serve applies its delays and bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

#: seconds after which an arrival counts for 1/e
_MEMORY_S = 30.0
#: the part of a replica's rate that is planned for; the rest is reserve for uneven arrivals
_UTILIZATION = 0.8
#: the least number of replicas while there is any request; without requests, a smaller number counts as 0
FEWEST = 0.01


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of an ingress. `in_hand`: all of them. `placed`: those with a place.

    `waiting_blocks`: blocks of the waiting requests. `rate_of_place`: blocks per second of one place at full load.
    """

    in_hand: int
    placed: int
    waiting_blocks: float
    rate_of_place: float | None


class Demand:
    """Computes the demand for replicas. `came` gets every accepted request.

    `places`: places of one replica. Before a replica is known, the most that the settings allow.
    """

    def __init__(self, places: int, target_queue_s: float, clock: Callable[[], float]) -> None:
        self.places = places
        self._target_queue_s = target_queue_s
        self._clock = clock
        self._come, self._since = 0.0, clock()

    def came(self, blocks: float) -> float:
        """Counts an accepted request for `blocks` blocks. Returns the time."""
        self._come = self._remembered() + blocks
        self._since = self._clock()
        return self._since

    def refused(self, blocks: float, came: float) -> None:
        """A replica has refused a request that came at that time: it was no demand."""
        self._come = max(0.0, self._come - blocks * math.exp((came - self._since) / _MEMORY_S))

    def wanted(self, load: Load, ratio: float) -> float:
        """The number of replicas, as a fraction. `ratio`: blocks decoded per block requested."""
        taken = load.placed / self.places
        if load.rate_of_place is None:
            wanted = taken / _UTILIZATION
        else:
            rate = load.rate_of_place * self.places
            flow = self._remembered() * ratio / _MEMORY_S / rate / _UTILIZATION
            full = taken / _UTILIZATION if load.waiting_blocks else taken
            wanted = max(full, flow + load.waiting_blocks / (rate * self._target_queue_s))
        return max(wanted, FEWEST) if load.in_hand else wanted if wanted > FEWEST else 0.0

    def _remembered(self) -> float:
        return self._come * math.exp((self._since - self._clock()) / _MEMORY_S)
