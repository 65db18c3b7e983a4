"""The forecast of KV pages: those that requests hold at their peak, by the lengths of the last answers.

A client seldom says how long an answer will be, and its limit is many times that. So an answer's length is the median
of the longer ones of late. Where this is too short, requests lose their pages to older ones (`scheduler.py`).
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable

from service.engine.request import GenerationRequest

#: the answers whose lengths count, and the fewest that say anything
_ANSWERS, _LEAST = 512, 16


class PageForecast:
    """The expected pages of requests. `block_size`: the tokens of a page."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._lengths = deque[int]()  # of the last answers, in blocks
        self._sorted: list[int] = []

    def add(self, request: GenerationRequest, num_blocks: int) -> None:
        """An answer has ended. Without stop tokens its length was no surprise, and says nothing about others."""
        if not num_blocks or not request.stop_token_ids:
            return
        if len(self._lengths) == _ANSWERS:
            del self._sorted[bisect_right(self._sorted, self._lengths.popleft()) - 1]
        self._lengths.append(num_blocks)
        insort(self._sorted, num_blocks)

    def pages(self, request: GenerationRequest, num_prompt_blocks: int, num_blocks: int, limit: int) -> int:
        """The pages of a request at its end, at most `limit`. `num_blocks`: the blocks of its answer so far."""
        if len(self._sorted) < _LEAST or not request.stop_token_ids:
            return limit
        longer = bisect_right(self._sorted, num_blocks)
        rest = len(self._sorted) - longer
        length = self._sorted[longer + rest // 2] if rest else 2 * num_blocks
        least = -(-request.sampling.min_tokens // self._block_size)
        return min(limit, num_prompt_blocks + max(length, least))


def peak(loads: Iterable[tuple[int, int]]) -> int:
    """The most pages that requests hold together, if the pages of all grow at one pace and return at each one's end.

    `loads`: of each request, the pages that it still takes, and its own now.
    """
    highest = held = 0
    for count, (left, own) in enumerate(sorted(loads, reverse=True), 1):
        held += own
        highest = max(highest, held + count * left)
    return highest
