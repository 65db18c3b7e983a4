"""What following constraints may take of the engine's thread, on which all requests wait.

Every token of an answer brings time for the answers of its constraint. What they take beyond that comes from the
reserve of their tenant, which fills up slowly. Where both are used up, the answers that need more end.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: CPU seconds that a token brings. Common schemas take a tenth of it with 150,000 tokens to choose from, 500 optional
#: properties of one object nearly all.
A_TOKEN = 0.003
#: CPU seconds of the reserve, and what it gets in a second
RESERVE, A_SECOND = 0.25, 0.05
#: CPU seconds for the first masks of a constraint, and what it saves at most
_FIRST, _SAVED = 0.02, 0.05


class Reserve:
    """The reserve of one tenant. `clock`: in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at, self._left = clock, clock(), RESERVE

    @property
    def empty(self) -> bool:
        """Whether nothing is left."""
        self.take(0.0)
        return self._left <= 0

    def take(self, seconds: float) -> None:
        """Takes seconds out, if need be more than there are."""
        now = self._clock()
        self._left = min(RESERVE, self._left + (now - self._at) * A_SECOND) - seconds
        self._at = now


class Account:
    """The time that all answers of one tenant's constraint have."""

    def __init__(self, reserve: Reserve) -> None:
        self._reserve, self._credit = reserve, _FIRST

    @property
    def used_up(self) -> bool:
        """Whether there is no more time."""
        return self._credit <= 0 and self._reserve.empty

    def earn(self, tokens: int) -> None:
        """Adds the time of so many new tokens."""
        self._credit = min(_SAVED, self._credit + tokens * A_TOKEN)

    def pay(self, seconds: float) -> None:
        """Takes off CPU seconds."""
        self._credit -= seconds
        if self._credit < 0:
            self._reserve.take(-self._credit)
            self._credit = 0.0
