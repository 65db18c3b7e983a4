"""The forecast of KV pages: those that requests hold at their peak, by the lengths of the last answers.

A client seldom says how long an answer will be, and its limit is many times that. So an answer is expected to end where
half of the answers that became as long had ended. Running answers count, too: at least as long as they are (the
estimator of Kaplan and Meier). Without them a replica that starts with many requests would see short answers alone.
Where the forecast is too small, requests lose their pages to older ones (`scheduler.py`).
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from math import log

from service.engine.request import GenerationRequest
from service.engine.running_request import RunningRequest

#: the answers whose lengths count, and the fewest that say anything
_ANSWERS, _LEAST = 512, 16


class PageForecast:
    """The expected pages of requests. `block_size`: the tokens of a page.

    An answer without stop tokens ends at its limit. Its length says nothing about others.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._ended = deque[int]()  # the lengths of the last answers, in blocks
        self._sorted: list[int] = []
        self._lengths: list[int] = []  # these lengths, once each
        self._survival: list[float] = []  # the share of answers that are longer, times -1

    def add(self, request: GenerationRequest, num_blocks: int) -> None:
        """An answer has ended."""
        if not num_blocks or not request.stop_token_ids:
            return
        if len(self._ended) == _ANSWERS:
            del self._sorted[bisect_left(self._sorted, self._ended.popleft())]
        self._ended.append(num_blocks)
        insort(self._sorted, num_blocks)

    def observe(self, started: Iterable[RunningRequest]) -> None:
        """Counts the answers that have not ended. Called before `pages`."""
        running = sorted([request.num_blocks for request in started if request.request.stop_token_ids])
        left, share = len(self._sorted), 1.0
        self._lengths, self._survival = [], []
        for length, count in Counter(self._sorted).items():
            share *= 1 - count / (left + len(running) - bisect_left(running, length))
            left -= count
            self._lengths.append(length)
            self._survival.append(-share)

    def pages(self, request: GenerationRequest, num_prompt_blocks: int, num_blocks: int, limit: int) -> int:
        """The pages of a request at its end, at most `limit`. `num_blocks`: the blocks of its answer so far."""
        if len(self._sorted) < _LEAST or not request.stop_token_ids:
            return limit
        least = -(-request.sampling.min_tokens // self._block_size)
        return min(limit, num_prompt_blocks + max(self._length(num_blocks), least))

    def _length(self, num_blocks: int) -> int:
        """The blocks that half of the answers of at least `num_blocks` blocks do not exceed."""
        first = bisect_right(self._lengths, num_blocks)
        share = -self._survival[first - 1] if first else 1.0
        index = bisect_left(self._survival, -share / 2, lo=first)
        if index < len(self._lengths):
            return self._lengths[index]
        last = -self._survival[-1]  # fewer have ended: as many will end from block to block as before, or fewer
        steady = self._lengths[-1] * log(share / 2) / log(last) if 0 < last < 1 else 0.0
        return max(2 * num_blocks, round(steady))

    def peak(self, loads: Sequence[tuple[int, int]]) -> int:
        """The most pages that requests hold together, if the pages of all grow at one pace until each one ends.

        `loads`: the pages that each request still takes, and its own now.
        """
        highest = held = 0
        for count, (left, now) in enumerate(sorted(loads, reverse=True), 1):
            held += now
            highest = max(highest, held + count * left)
        return highest
