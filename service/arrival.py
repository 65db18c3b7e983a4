"""The time of a request's arrival at its ingress, in a form that is correct on machines with different clocks.

An `Arrival` is a moment of one process's monotonic clock. Pickling stores the seconds that have passed since that
moment. Unpickling subtracts them from the other process's clock. Two clocks are therefore never compared. Ray Serve
pickles a request when it sends it to a replica: the wait for a replica counts, the transfer does not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """A moment. `at`: seconds of this process's monotonic clock."""

    at: float

    @classmethod
    def now(cls) -> Arrival:
        """This moment."""
        return cls(time.monotonic())

    @classmethod
    def ago(cls, seconds: float) -> Arrival:
        """The moment `seconds` ago."""
        return cls(time.monotonic() - seconds)

    def waited_s(self) -> float:
        """The seconds that have passed since this moment."""
        return time.monotonic() - self.at

    def __reduce__(self) -> tuple[object, ...]:
        return Arrival.ago, (self.waited_s(),)
