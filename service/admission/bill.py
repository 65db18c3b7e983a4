"""The tokens of one answer, and the charge to the API key. A key pays only for tokens that the client got.

An answer is charged an estimate when it begins to wait, and the tokens it used when it ends. If the client leaves
before the end, the estimate stays. If the request fails, only the tokens already streamed stay charged.
"""

from __future__ import annotations

from collections.abc import Callable

from service.admission.throughput import Moment, Throughput
from service.wire import Answer, Chunk, Ending, Progress


class Job:
    """One answer. `take` gets every item of its stream, or the whole answer.

    `asked`, `decoded`: blocks requested, and decoded so far. `streamed`: tokens sent to the client so far. `used`:
    tokens of prompt and completion, None before the end. `charged`: tokens that the key has paid. `begun`: when the
    answer got its place, None before.
    """

    def __init__(self, asked: int, block_size: int, throughput: Throughput) -> None:
        self.asked = asked
        self.decoded = 0
        self.streamed = 0
        self.charged = 0.0
        self.used: int | None = None
        self.begun: Moment | None = None
        self._block_size, self._throughput = block_size, throughput

    def take(self, item: Answer | Progress | Chunk | Ending) -> None:
        """Counts an item of the stream, or the whole answer."""
        if isinstance(item, Chunk):
            self.decoded += 1
            self._throughput.decoded(1)
            self.streamed += len(item.token_ids)
        elif isinstance(item, Ending):
            self._end(item)
            self.streamed = item.prompt_tokens + item.completion_tokens
        elif isinstance(item, Answer):
            self.decoded = -(-item.ending.completion_tokens // self._block_size)
            if self.begun is not None:
                self._throughput.decoded_since(self.begun, self.decoded)
            self._end(item.ending)

    def _end(self, ending: Ending) -> None:
        self.used = ending.prompt_tokens + ending.completion_tokens
        self._throughput.answered(self.asked, self.decoded)


class Bill:
    """The charge for one HTTP request, which may have several answers. `take` takes tokens from the key's bucket.

    The answers of a failed request end in any order. `fail` therefore corrects answers that have already ended.
    """

    def __init__(self, take: Callable[[float], None]) -> None:
        self._take, self._failed = take, False
        self._closed: list[Job] = []

    def open(self, job: Job, estimate: float) -> None:
        """Charges the estimate, in tokens, when an answer begins to wait."""
        self._charge(job, estimate)

    def close(self, job: Job) -> None:
        """Charges the final amount when an answer ended, failed or was aborted."""
        self._closed.append(job)
        self._settle(job)

    def fail(self) -> None:
        """The request failed: from now on every answer is charged only the tokens already streamed."""
        self._failed = True
        for job in self._closed:
            self._settle(job)

    def _settle(self, job: Job) -> None:
        if self._failed:
            self._charge(job, job.streamed)
        elif job.used is not None:
            self._charge(job, job.used)
        else:
            self._charge(job, max(job.charged, job.streamed))

    def _charge(self, job: Job, tokens: float) -> None:
        self._take(tokens - job.charged)
        job.charged = tokens
