"""When a request came to its ingress, in a form that crosses machines whose clocks differ.

An `Arrival` is a moment of one process's monotonic clock. Pickling turns it into the seconds that have passed since
then; unpickling counts on from there by the other process's clock. So two clocks are never compared. Serve pickles a
request in the moment it sends it to a replica: the wait for a replica is counted, the time on the wire is not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """`at`: seconds of this process's monotonic clock."""

    at: float

    @classmethod
    def now(cls) -> Arrival:
        """This moment."""
        return cls(time.monotonic())

    @classmethod
    def ago(cls, seconds: float) -> Arrival:
        """The moment that was so many seconds ago."""
        return cls(time.monotonic() - seconds)

    def waited_s(self) -> float:
        """The seconds that have passed since then."""
        return time.monotonic() - self.at

    def __reduce__(self) -> tuple[object, ...]:
        return Arrival.ago, (self.waited_s(),)
