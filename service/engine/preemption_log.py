"""A warning that requests lost their KV pages, at most every minute. The metrics have the exact numbers."""

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)

#: seconds from one warning to the next
_INTERVAL_S = 60.0


class PreemptionLog:
    """Sums the preemptions of steps. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._due = clock, float("-inf")
        self._preemptions = self._recomputed = 0

    def add(self, preemptions: int, recomputed: int) -> None:
        """Counts a step's preemptions, and the tokens that are to be stored once more."""
        self._preemptions += preemptions
        self._recomputed += recomputed
        if not self._preemptions or self._clock() < self._due:
            return
        _log.warning(
            "the KV cache is full: requests lost their pages %d times, and %d tokens are computed again; a larger "
            "kv_cache_tokens or a smaller max_num_seqs avoids that",
            self._preemptions,
            self._recomputed,
        )
        self._due = self._clock() + _INTERVAL_S
        self._preemptions = self._recomputed = 0
