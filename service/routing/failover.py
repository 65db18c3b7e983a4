"""Failover: if a replica is lost, another replica continues the answer after the last block that was sent.

A continued request consists of the prompt and the tokens already sent, with the same seed, so it decodes to the same
tokens. An invalid request, or one that met a bug, is not tried again. A request whose engine failed is tried once more.
An answer begins again after a weight update, unless the client has a part of it. The pipeline makes the attempts.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from service.errors import (
    EngineFailed,
    MrpServeError,
    OutOfMemory,
    Quarantined,
    QueueFull,
    ReplicaLost,
    ReplicaStopping,
    WeightsBehind,
    WeightsChanged,
)
from service.messages.wire import Chunk, ReplicaRequest, Resume, Weights

#: errors that the request itself may have caused; the number of further attempts is limited
_LOSSES = (ReplicaLost, EngineFailed, OutOfMemory)
#: errors of a replica that cannot take a request now
_ELSEWHERE = (ReplicaStopping, WeightsBehind)

#: the codes of all errors that may lead to another attempt
REASONS = tuple(error.code for error in (*_LOSSES, *_ELSEWHERE, WeightsChanged, QueueFull))


@dataclass(frozen=True, slots=True)
class FailoverPolicy:
    """The attempts that a request may have.

    `pause_s`: the pause before the second attempt. It doubles for every further attempt, up to `longest_pause_s`.
    """

    max_failovers: int
    count: Callable[[MrpServeError], None] = lambda _: None  # gets every error that leads to another attempt
    newest_weights: Callable[[], Weights | None] = lambda: None  # the oldest weights that may answer; None: any
    pause_s: float = 0.05
    longest_pause_s: float = 1.0


class Attempts:
    """The attempts at one request. `request`: the request of the present attempt.

    `chunks` gets the chunks of a whole answer; it is emptied if the answer begins again. Of a stream only tokens are
    kept.
    """

    def __init__(self, request: ReplicaRequest, policy: FailoverPolicy, chunks: list[Chunk] | None = None) -> None:
        weights = policy.newest_weights()
        self.request = request if weights == request.weights else replace(request, weights=weights)
        self._original, self._policy = request, policy
        self._chunks = chunks
        self._token_ids: list[int] = []
        self._last: Chunk | None = None
        self._further = self._losses = self._failed_engines = 0

    def add(self, chunk: Chunk) -> None:
        self._token_ids += chunk.token_ids
        self._last = chunk
        if self._chunks is not None:
            self._chunks.append(chunk)

    async def next(self, error: MrpServeError) -> None:
        """Returns when the next attempt is due. Raises `error` if there may be no further attempt."""
        self._losses += isinstance(error, _LOSSES)
        self._failed_engines += isinstance(error, EngineFailed)
        if self._failed_engines > 1:
            raise Quarantined(
                "the engines of two replicas stopped while they decoded this request, so it is not tried again"
            ) from error
        pause = min(self._policy.longest_pause_s, self._policy.pause_s * 2.0**self._further)
        if not self._may_follow(error) or self._original.arrived.waited_s() + pause >= self._original.timeout_s:
            raise error
        self._further += 1
        self._policy.count(error)
        if isinstance(error, WeightsChanged):
            self._token_ids, self._last = [], None
            if self._chunks is not None:
                self._chunks.clear()
        decoded = self._last and self._last.stats.mode
        self.request = replace(
            self._original,
            mode=decoded or self._original.mode,  # an answer has one mode
            plans=() if decoded else self._original.plans,
            # Every attempt has its own request id: the chosen replica may still be aborting the last attempt.
            request_id=f"{self._original.request_id}.{self._further}",
            resume=self._resume(),
            attempt=self._further,
            weights=self._policy.newest_weights(),
        )
        await asyncio.sleep(pause)

    def _resume(self) -> Resume:
        if (last := self._last) is None:
            return Resume()
        num_steps = max((token.step for token in last.step_map), default=0)
        return Resume(tuple(self._token_ids), last.index + 1, last.stats, last.version, num_steps)

    def _may_follow(self, error: MrpServeError) -> bool:
        if isinstance(error, _LOSSES):
            return self._losses <= self._policy.max_failovers
        if isinstance(error, WeightsChanged) and self._last is not None and self._original.stream_interval == 1:
            return False  # the client has the chunks
        return self._policy.max_failovers > 0 and (
            isinstance(error, (*_ELSEWHERE, WeightsChanged)) or (isinstance(error, QueueFull) and self._further > 0)
        )
