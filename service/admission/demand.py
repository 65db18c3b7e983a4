"""The number of replicas that one ingress needs, from the arrival rate, the queue and the requests being decoded.

    wanted = arrivals / rate / 0.8 + waiting / (rate * target_queue_s)
    at least: slots taken / slots of a replica, divided by 0.8 while a request waits

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
class IngressLoad:
    """The requests of an ingress. `in_flight`: all of them. `running`: those with a slot.

    `waiting_blocks`: blocks of the waiting requests. `rate_per_slot`: blocks per second of one slot at full load.
    """

    in_flight: int
    running: int
    waiting_blocks: float
    rate_per_slot: float | None


class ReplicaDemand:
    """Computes the demand for replicas. `arrived` gets every accepted request.

    `slots`: slots of one replica. Before a replica is known, the most that the settings allow.
    """

    def __init__(self, slots: int, target_queue_s: float, clock: Callable[[], float]) -> None:
        self.slots = slots
        self._target_queue_s = target_queue_s
        self._clock = clock
        self._arrivals, self._since = 0.0, clock()

    def arrived(self, blocks: float) -> float:
        """Counts an accepted request for `blocks` blocks. Returns the time."""
        self._arrivals = self._decayed() + blocks
        self._since = self._clock()
        return self._since

    def refused(self, blocks: float, arrived: float) -> None:
        """A replica has refused a request that came at that time: it was no demand."""
        self._arrivals = max(0.0, self._arrivals - blocks * math.exp((arrived - self._since) / _MEMORY_S))

    def wanted(self, load: IngressLoad, ratio: float) -> float:
        """The number of replicas, as a fraction. `ratio`: blocks decoded per block requested."""
        taken = load.running / self.slots
        if load.rate_per_slot is None:
            wanted = taken / _UTILIZATION
        else:
            rate = load.rate_per_slot * self.slots
            flow = self._decayed() * ratio / _MEMORY_S / rate / _UTILIZATION
            full = taken / _UTILIZATION if load.waiting_blocks else taken
            wanted = max(full, flow + load.waiting_blocks / (rate * self._target_queue_s))
        return max(wanted, FEWEST) if load.in_flight else wanted if wanted > FEWEST else 0.0

    def _decayed(self) -> float:
        return self._arrivals * math.exp((self._since - self._clock()) / _MEMORY_S)
