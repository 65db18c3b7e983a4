"""The tokens of one answer, and the charge to the API key. A key pays for the work that it caused.

An answer is charged an estimate when it begins to wait, and the tokens it used when it ends. If the client leaves
before the end, or its own limits end the request, the estimate stays charged, or the decoded tokens if they are more.
A request that is refused after it was encoded costs its prompt. Only the service's own faults are free: the tokens
already streamed stay charged.
"""

import math
from collections.abc import Callable

from service.admission.throughput import Moment, Throughput
from service.errors import ConstraintFailed, DeadlineExceeded, InvalidRequest
from service.messages.wire import Chunk, Ending, Progress, ReplicaRequest

#: letters of a token, for the estimate of a prompt that is not encoded yet
_LETTERS = 4
#: the charge for counting a prompt's tokens, as a part of these tokens
_COUNTED = 0.1


def prompt_estimate(request: ReplicaRequest) -> float:
    """The number of tokens that a request's prompt is likely to have."""
    if request.token_ids is not None:
        return float(len(request.token_ids))
    letters = len(request.text or "") + sum(len(str(message.get("content"))) for message in request.messages or ())
    return (letters + sum(len(str(tool)) for tool in request.tools)) / _LETTERS


class AnswerUsage:
    """One answer. `add` gets every item of it. `whole`: its client gets nothing before the end."""

    def __init__(
        self, requested: int, prompt: float, block_size: int, throughput: Throughput, *, whole: bool = False
    ) -> None:
        self.requested = requested  # blocks
        self.decoded = 0  # blocks so far
        self.prompt = prompt  # tokens, an estimate until they are known
        self.estimate = 0.0  # tokens charged at first
        self.charged = 0.0  # tokens that the key has paid
        self.streamed = 0  # tokens sent to the client so far
        self.used: int | None = None  # tokens of prompt and completion, None before the end
        self.counted: Moment | None = None  # up to which its blocks are counted, from its slot on; None before
        self._block_size, self._throughput, self._whole = block_size, throughput, whole

    def add(self, item: Progress | Chunk | Ending) -> None:
        if isinstance(item, Ending):
            self.used = item.prompt_tokens + item.completion_tokens
            if not self._whole:
                self.streamed = self.used
            self._count_blocks(max(0, -(-item.completion_tokens // self._block_size) - self.decoded))
            self._throughput.answered(self.requested, self.decoded)
        elif isinstance(item, Chunk):
            self._count_blocks(-(-len(item.token_ids) // self._block_size))
            if not self._whole:
                self.streamed += len(item.token_ids)
                self.prompt = item.prompt_tokens or self.prompt

    def count(self, tokens: int) -> None:
        """The request was to count the prompt's tokens only."""
        self.used = math.ceil(tokens * _COUNTED)

    def _count_blocks(self, blocks: int) -> None:
        self.decoded += blocks
        if self.counted is not None:
            self.counted = self._throughput.decoded_since(self.counted, blocks)


class TokenCharge:
    """The charge for one HTTP request. Its answers may end in any order. `consume` uses tokens of the key's bucket."""

    def __init__(self, consume: Callable[[float], None]) -> None:
        self._consume = consume
        self._error: Exception | None = None
        self._closed: list[AnswerUsage] = []

    def open(self, usage: AnswerUsage, estimate: float) -> None:
        """Charges the estimate, in tokens, when an answer begins to wait."""
        usage.estimate = estimate
        self._charge(usage, estimate)

    def close(self, usage: AnswerUsage) -> None:
        """Charges the final amount when an answer ended, failed or was aborted."""
        self._closed.append(usage)
        self._settle(usage)

    def fail(self, error: Exception) -> None:
        """The request failed: from now on every answer is charged by the first error's cause."""
        self._error = self._error or error
        for usage in self._closed:
            self._settle(usage)

    def _settle(self, usage: AnswerUsage) -> None:
        error = self._error
        refused = isinstance(error, InvalidRequest) and not isinstance(error, ConstraintFailed)
        if error is not None and not (refused or isinstance(error, (ConstraintFailed, DeadlineExceeded))):
            self._charge(usage, usage.streamed)  # the service's fault
        elif usage.used is not None:
            self._charge(usage, usage.used)
        elif error is not None and usage.counted is None:
            self._charge(usage, 0.0)
        else:
            spent = usage.prompt + usage.streamed
            self._charge(usage, spent if refused else max(usage.estimate, spent))

    def _charge(self, usage: AnswerUsage, tokens: float) -> None:
        self._consume(tokens - usage.charged)
        usage.charged = tokens
