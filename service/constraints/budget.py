"""The CPU time that constraints may take of the engine's thread, on which all requests wait.

Every token of an answer earns time for the answers of its constraint. Time beyond that comes from the tenant's reserve,
a token bucket that fills up slowly. When both are used up, answers that need more end.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: CPU seconds that a token earns. Common schemas take a tenth of it with 150,000 tokens to choose from, 500 optional
#: properties of one object nearly all.
PER_TOKEN = 0.003
#: CPU seconds of a full reserve, and its gain in a second
RESERVE, PER_SECOND = 0.25, 0.05
#: CPU seconds of a new budget, and the most that a budget saves
_INITIAL, _MAX_SAVED = 0.02, 0.05


class TenantReserve:
    """The reserve of one tenant. `clock`: a clock in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at, self._left = clock, clock(), RESERVE

    @property
    def empty(self) -> bool:
        """Whether no time is left."""
        self.spend(0.0)
        return self._left <= 0

    def spend(self, seconds: float) -> None:
        """Takes CPU seconds off, even if fewer are left."""
        now = self._clock()
        self._left = min(RESERVE, self._left + (now - self._at) * PER_SECOND) - seconds
        self._at = now


class GrammarBudget:
    """The time that all answers of one tenant's constraint share."""

    def __init__(self, reserve: TenantReserve) -> None:
        self._reserve, self._credit = reserve, _INITIAL

    @property
    def used_up(self) -> bool:
        """Whether no time is left."""
        return self._credit <= 0 and self._reserve.empty

    def earn(self, tokens: int) -> None:
        """Adds the time of new tokens. `tokens`: their number."""
        self._credit = min(_MAX_SAVED, self._credit + tokens * PER_TOKEN)

    def spend(self, seconds: float) -> None:
        """Takes CPU seconds off."""
        self._credit -= seconds
        if self._credit < 0:
            self._reserve.spend(-self._credit)
            self._credit = 0.0
