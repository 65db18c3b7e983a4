"""The time of a request's arrival at its ingress, in a form that is correct on machines with different clocks.

An `Arrival` is a moment of one process's monotonic clock. The seconds that have passed since that moment are sent. The
receiver subtracts them from its own clock. Two clocks are therefore never compared. A request is encoded when it is
sent to a replica: the wait for a replica counts, the transfer does not.
"""

from __future__ import annotations

import time


class Arrival:
    """A moment. `at`: seconds of this process's monotonic clock."""

    __slots__ = ("at",)

    def __init__(self, at: float) -> None:
        self.at = at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arrival) and self.at == other.at

    def __hash__(self) -> int:
        return hash(self.at)

    def __repr__(self) -> str:
        return f"Arrival({self.at})"

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
