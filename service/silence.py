"""How long the other one of two processes has been silent. Each says often that it is alive (`BEAT_S`).

A stopped process keeps its connections open, and its machine still answers for it. Only its own words show that it
runs: an engine's process says them to its replica, a replica to its ingresses.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: seconds between two words of a process that has nothing else to say
BEAT_S = 0.5
#: seconds of silence after which a process counts as hung. Python stands still for less while it loads a library or
#: a large tokenizer. A debugger that holds a process for five seconds ends nothing.
HUNG_S = 7.0
#: seconds between two looks, at most so many of which count
LOOK_S = 0.25
_MOST_S = 2 * LOOK_S


class Silence:
    """Counts seconds of silence at each `look`, which comes every `LOOK_S`.

    A listener that stood still itself looks late. It counts little of that time, since it could not hear.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._looked = clock, clock()
        self._seconds = 0.0

    def heard(self) -> None:
        """The other process has said something."""
        self._seconds = 0.0

    def look(self) -> float:
        """The seconds of silence."""
        now = self._clock()
        self._seconds += min(now - self._looked, _MOST_S)
        self._looked = now
        return self._seconds
