"""The forecast of KV pages: those that requests hold at their peak, by the lengths of the last answers.

A client seldom says how long an answer will be, and its limit is many times that. So an answer is expected to end where
half of the answers that became as long had ended. Running answers count, too: at least as long as they are (the
estimator of Kaplan and Meier). Without them a replica that starts with many requests would see short answers alone.
Where the forecast is too small, requests lose their pages to older ones (`scheduler.py`).
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from service.engine.prefix_cache import Lease

PageCounts = NDArray[np.int64]

#: the answers whose lengths count, and the fewest that say anything
_ANSWERS, _LEAST = 512, 16
#: equal shares may differ by so much
_ROUNDING = 1e-9


class PageForecast:
    """The expected pages of requests."""

    def __init__(self) -> None:
        self._ended = deque[int]()  # the lengths of the last answers, in blocks
        self._sorted: list[int] = []

    def add(self, lease: Lease) -> None:
        """An answer has ended. One that was sure to reach its limit says nothing about others."""
        if lease.least == lease.limit:
            return
        length = lease.index - lease.num_prompt + 1
        if len(self._ended) == _ANSWERS:
            del self._sorted[bisect_left(self._sorted, self._ended.popleft())]
        self._ended.append(length)
        insort(self._sorted, length)

    def peak(self, leases: Sequence[Lease], num_used: int, num_new: int) -> int:
        """The most pages that requests hold together, if the pages of all grow at one pace until each one ends.

        The request of the last lease would start with `num_new` pages. `num_used`: the pages in use before.
        """
        fields = [(it.num_prompt, it.index, it.least, it.limit, it.wanted, it.num_own) for it in leases]
        prompt, index, least, limit, wanted, held = np.array(fields).T
        held[-1] = num_new
        left = np.maximum(0, self.ends(prompt, index - prompt, least, limit) - wanted)
        order = np.argsort(-left)
        both = held[order].cumsum() + left[order] * np.arange(1, len(left) + 1)
        return int(num_used + num_new - held.sum() + both.max())

    def ends(self, prompt: PageCounts, blocks: PageCounts, least: PageCounts, limit: PageCounts) -> PageCounts:
        """The expected pages of requests at their ends `[N]`. `prompt`: the whole blocks of their prompts.

        `blocks`: the finished blocks of their answers. `least`, `limit`: the fewest and the most pages.
        """
        if len(self._sorted) < _LEAST:
            return limit
        running = np.sort(blocks[least < limit])
        lengths, counts = np.unique(self._sorted, return_counts=True)
        not_shorter = counts[::-1].cumsum()[::-1] + len(running) - np.searchsorted(running, lengths)
        survival = np.cumprod(1 - counts / not_shorter)
        first = np.searchsorted(lengths, blocks, "right")
        share = np.append(1.0, survival)[first]
        half = np.maximum(first, np.searchsorted(-survival, -share / 2 - _ROUNDING))
        length = np.where(half < len(lengths), np.append(lengths, 0)[half], 2 * blocks)
        if 0 < survival[-1] < 1:  # beyond the longest answer as many end from block to block as before, or fewer
            steady = lengths[-1] * np.log(share / 2) / log(survival[-1])
            length = np.where(half < len(lengths), length, np.maximum(length, steady.round()))
        return np.minimum(limit, np.maximum(least, prompt + length)).astype(np.int64)
