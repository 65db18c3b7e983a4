"""What one answer uses, and what the key of its request pays: only for what the client got.

An answer is charged an estimate when it begins to wait, and the tokens it used when it ends. If the client leaves
before that, the estimate stays. If the request fails, what was streamed stays and the rest is given back. Knows no
buckets, no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable

from service.admission.throughput import Moment, Throughput
from service.wire import Answer, Chunk, Ending


class Job:
    """One answer. It is told of every item of a stream, or of the whole answer.

    `decoded`: blocks. `streamed`: tokens that were handed to the client so far. `used`: prompt and completion; None
    before the end. `charged`: tokens that its key has paid. `begun`: when it got its place.
    """

    def __init__(self, asked: int, block_size: int, throughput: Throughput) -> None:
        self.asked, self.decoded = asked, 0
        self.streamed, self.charged = 0, 0.0
        self.used: int | None = None
        self.begun: Moment | None = None
        self._block_size, self._throughput = block_size, throughput

    def take(self, item: Answer | Chunk | Ending) -> None:
        """An item of the stream, or the whole answer."""
        if isinstance(item, Chunk):
            self.decoded += 1
            self._throughput.decoded(1)
            self.streamed += len(item.token_ids)
        elif isinstance(item, Ending):
            self._end(item)
            self.streamed = item.prompt_tokens + item.completion_tokens
        else:
            self.decoded = -(-item.ending.completion_tokens // self._block_size)
            if self.begun is not None:
                self._throughput.decoded_since(self.begun, self.decoded)
            self._end(item.ending)

    def _end(self, ending: Ending) -> None:
        self.used = ending.prompt_tokens + ending.completion_tokens
        self._throughput.answered(self.asked, self.decoded)


class Bill:
    """The tokens of one HTTP request, which may ask for several answers. `take` takes them from the key's bucket.

    The answers of a request that fails end in any order, so an answer that has ended may be corrected later.
    """

    def __init__(self, take: Callable[[float], None]) -> None:
        self._take, self._failed = take, False
        self._closed: list[Job] = []

    def open(self, job: Job, estimate: float) -> None:
        """An answer begins to wait."""
        self._charge(job, estimate)

    def close(self, job: Job) -> None:
        """An answer ended, failed, or was broken off."""
        self._closed.append(job)
        self._settle(job)

    def fail(self) -> None:
        """The request ends with an error of ours, so the client gets no more than what was streamed."""
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
