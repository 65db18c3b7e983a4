"""The measured throughput of the replicas, and the number of replicas that it takes for the requests.

The decoding rate is in blocks per second and slot. Only seconds in which every slot was taken count, recent ones more.
The seconds of an answer count when its blocks are known. So the rate stays the same while nothing is heard of answers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

#: the seconds at full load, and the number of requests, after which an observation counts for 1/e
_MEMORY_S, _MEMORY_REQUESTS = 20.0, 100.0
#: seconds at full load before the rate is used
_FIRST_S = 1.0
#: seconds after which an arrival counts for 1/e
_ARRIVALS_S = 30.0
#: the part of a replica's rate that is planned for; the rest is reserve for uneven arrivals
_UTILIZATION = 0.8
#: seconds in which the replicas should finish the waiting work
_TARGET_QUEUE_S = 10.0
#: the least number of replicas while there is any request; without requests, a smaller number counts as 0
MIN_WANTED = 0.01


@dataclass(frozen=True, slots=True)
class Moment:
    """`at`: the clock. `full`: seconds at full load before it. `slots`: these, times all slots for each taken one."""

    at: float
    full: float
    slots: float


class Throughput:
    """Measures the throughput. Its methods get every change of the slots taken, and every block."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._taken = self._slots = 0
        self._full, self._halted = False, False
        self._since = clock()
        self._blocks = self._slot_seconds = self._full_seconds = self._full_slots = 0.0
        self._requested = self._decoded = 0.0

    def occupied(self, taken: int, slots: int, *, has_waiting: bool = False) -> None:
        """From now on `taken` of `slots` slots are taken. They are all that can be if somebody waits."""
        self._update()
        self._taken, self._slots = taken, slots
        self._full = taken > 0 and (taken >= slots > 0 or has_waiting)

    def set_halted(self, halted: bool) -> None:
        """Whether the replicas are halted from now on, by order. Such seconds say nothing about the rate."""
        self._update()
        self._halted = halted

    def _update(self) -> None:
        now = self._clock()
        if self._full and not self._halted and now > self._since:
            seconds = now - self._since
            decay = math.exp(-seconds / _MEMORY_S)
            self._blocks *= decay
            self._slot_seconds *= decay
            self._full_seconds += seconds
            self._full_slots += seconds * self._slots / self._taken
        self._since = now

    def moment(self) -> Moment:
        self._update()
        return Moment(self._clock(), self._full_seconds, self._full_slots)

    def decoded_since(self, start: Moment, blocks: float) -> Moment:
        """Counts an answer's blocks from `start` to now, spread evenly, and the time of its slot. Returns now."""
        now = self.moment()
        if full := now.full - start.full:
            counted = _MEMORY_S * (1 - math.exp(-full / _MEMORY_S))
            self._blocks += blocks * counted / (now.at - start.at)
            self._slot_seconds += counted * (now.slots - start.slots) / full
        return now

    def answered(self, requested: float, decoded: float) -> None:
        """Counts an answer with `decoded` blocks to a request for `requested` blocks."""
        decay = math.exp(-1 / _MEMORY_REQUESTS)
        self._requested = self._requested * decay + requested
        self._decoded = self._decoded * decay + min(requested, decoded)

    @property
    def ratio(self) -> float:
        """Blocks decoded per block requested; 1 before the first answer."""
        return self._decoded / self._requested if self._requested else 1.0

    @property
    def rate_per_slot(self) -> float | None:
        """Blocks per second of one slot while all slots are taken. None until it is known."""
        self._update()
        if self._full_seconds < _FIRST_S or not self._blocks or not self._slot_seconds:
            return None
        return self._blocks / self._slot_seconds

    @property
    def guessed_s(self) -> float:
        """Seconds between two answers while no rate is known: each slot gives one in the time of full load so far."""
        self._update()
        return max(_FIRST_S, self._full_seconds) / max(1, self._slots)

    @property
    def rate(self) -> float | None:
        """Blocks per second of all slots together. None until it is known, and while there are no slots."""
        rate = self.rate_per_slot
        return rate * self._slots if rate is not None and self._slots else None


class ReplicaDemand:
    """The number of replicas that one ingress needs. `slots`: one replica's, at first the most by the settings.

        wanted = arrivals / rate / 0.8 + waiting / (rate * 10 s)
        at least: slots taken / slots of a replica, divided by 0.8 while a request waits

    `arrivals`: blocks requested per second. `rate`: blocks per second of a replica at full load. `waiting`: blocks. The
    lower bound keeps replicas that are still decoding a past burst, and reacts before the average of 30 seconds does.
    Decoded blocks say nothing: while a queue is emptied, any number of replicas is fully busy.
    """

    def __init__(self, slots: int, clock: Callable[[], float]) -> None:
        self.slots = slots
        self._clock = clock
        self._arrivals, self._since = 0.0, clock()

    def arrived(self, blocks: float) -> float:
        """Counts an accepted request for `blocks` blocks. Returns the time."""
        self._arrivals = self._decayed() + blocks
        self._since = self._clock()
        return self._since

    def refused(self, blocks: float, arrived: float) -> None:
        """A replica has refused a request that came at that time: it was no demand."""
        self._arrivals = max(0.0, self._arrivals - blocks * math.exp((arrived - self._since) / _ARRIVALS_S))

    def wanted(
        self, ratio: float, *, in_flight: int, running: int, waiting_blocks: float, rate_per_slot: float | None
    ) -> float:
        """The number of replicas, as a fraction, for all requests of an ingress.

        `ratio`: blocks decoded per block requested. `running`: requests with a slot. `rate_per_slot`: blocks a second.
        """
        taken = running / self.slots
        if rate_per_slot is None:
            wanted = taken / _UTILIZATION
        else:
            rate = rate_per_slot * self.slots
            flow = self._decayed() * ratio / _ARRIVALS_S / rate / _UTILIZATION
            full = taken / _UTILIZATION if waiting_blocks else taken
            wanted = max(full, flow + waiting_blocks / (rate * _TARGET_QUEUE_S))
        return max(wanted, MIN_WANTED) if in_flight else wanted if wanted > MIN_WANTED else 0.0

    def _decayed(self) -> float:
        return self._arrivals * math.exp((self._since - self._clock()) / _ARRIVALS_S)
