"""Failover: if a replica is lost, another replica continues the answer after the last block that was sent.

A continued request consists of the prompt and the tokens already sent, with the same seed. It therefore decodes to
the same tokens. An invalid request, or one that met a bug, is not tried again. A request whose engine failed is
tried once more. If the second engine fails too, the request is suspected and no third replica gets it.

Weights that were exchanged meanwhile begin the answer again, unless the client has a part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

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
from service.gateway.backend import Backend
from service.wire import Answer, Answering, Chunk, Ending, Failure, Progress, ReplicaRequest, Resume, Weights

#: the pause before the second attempt; it doubles for every further attempt, up to the longest
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

#: errors that the request itself may have caused; the number of further attempts is limited
_LOSSES = (ReplicaLost, EngineFailed, OutOfMemory)
#: errors of a replica that cannot take a request now
_ELSEWHERE = (ReplicaStopping, WeightsBehind)

#: the codes of all errors that may lead to another attempt
REASONS = tuple(error.code for error in (*_LOSSES, *_ELSEWHERE, WeightsChanged, QueueFull))


class Failover:
    """Sends a request to a backend until it is answered. `count` gets every error that leads to another attempt.

    `newest`: the oldest weights that may answer; None: any.
    """

    def __init__(
        self,
        backend: Backend,
        max_failovers: int,
        count: Callable[[MrpServeError], None],
        newest: Callable[[], Weights | None] = lambda: None,
    ) -> None:
        self._newest = newest
        self._backend = backend
        self._max_failovers = max_failovers
        self._count = count

    async def complete(self, request: ReplicaRequest) -> Answer:
        """The whole answer. After a loss it goes on after the last chunk that came. Needs `request.together` > 1."""
        attempts = _Attempts(request, self._max_failovers, self._count, self._newest)
        async with aclosing(self._stream(attempts)) as items:
            async for item in items:
                if isinstance(item, Ending):
                    return Answer.from_chunks(attempts.sent, item)
        raise AssertionError("an answer ended without an ending")

    async def tokens(self, request: ReplicaRequest) -> int:
        """The number of tokens of a request's prompt."""
        attempts = _Attempts(request, self._max_failovers, self._count, self._newest)
        while True:
            try:
                tokens = await self._backend.count(attempts.request)
                if isinstance(tokens, Failure):
                    raise tokens.error
                return tokens
            except MrpServeError as error:
                await attempts.another(error)

    def stream(self, request: ReplicaRequest) -> Answering:
        """The answer block by block, every block once. Closing the stream ends the current attempt.

        After a loss, the steps of an unfinished block come again.
        """
        return self._stream(_Attempts(request, self._max_failovers, self._count, self._newest))

    async def _stream(self, attempts: _Attempts) -> Answering:
        while True:
            try:
                async with aclosing(self._backend.stream(attempts.request)) as items:
                    async for item in items:
                        if isinstance(item, Failure):
                            raise item.error
                        attempts.took(item)
                        yield item
                        if isinstance(item, Chunk) and item.ending is not None:
                            yield item.ending
                if not attempts.complete:
                    raise AssertionError("a stream ended without an ending")
                return
            except MrpServeError as error:
                if attempts.complete:
                    return
                await attempts.another(error)


class _Attempts:
    """The attempts at one request: the request of the next attempt, and whether there may be one.

    `sent`: the chunks that came.
    """

    def __init__(
        self,
        request: ReplicaRequest,
        max_failovers: int,
        count: Callable[[MrpServeError], None],
        newest: Callable[[], Weights | None],
    ) -> None:
        weights = newest()
        self.request, self.complete = request if weights is None else replace(request, weights=weights), False
        self._newest = newest
        self._first = request
        self._max_failovers = max_failovers
        self._count = count
        self.sent: list[Chunk] = []
        self._made = self._lost = self._failed_engines = 0

    def took(self, item: Progress | Chunk | Ending) -> None:
        """Notes an item that came. No other replica needs to send it."""
        self.complete = isinstance(item, Ending) or (isinstance(item, Chunk) and item.ending is not None)
        if isinstance(item, Chunk):
            self.sent.append(item)

    async def another(self, error: MrpServeError) -> None:
        """Returns when the next attempt is due. Raises `error` if there may be no further attempt."""
        self._lost += isinstance(error, _LOSSES)
        self._failed_engines += isinstance(error, EngineFailed)
        if self._failed_engines > 1:
            raise Quarantined(
                "the engines of two replicas stopped while they decoded this request, so it is not tried again"
            ) from error
        pause = min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0**self._made)
        if not self._elsewhere(error) or self._first.arrived.waited_s() + pause >= self._first.timeout_s:
            raise error
        self._made += 1
        self._count(error)
        if isinstance(error, WeightsChanged):
            self.sent.clear()
        # Every attempt has its own request id: the chosen replica may still be aborting the last attempt.
        name = f"{self._first.request_id}.{self._made}"
        resume, weights = self._resume(), self._newest()
        self.request = replace(self._first, request_id=name, resume=resume, attempt=self._made, weights=weights)
        await asyncio.sleep(pause)

    def _resume(self) -> Resume:
        if not self.sent:
            return Resume()
        tokens = tuple(token for chunk in self.sent for token in chunk.token_ids)
        last = self.sent[-1]
        return Resume(tokens, last.index + 1, last.stats, last.version)

    def _elsewhere(self, error: MrpServeError) -> bool:
        """Whether to try another replica. QueueFull is tried again only after a first attempt was accepted."""
        if isinstance(error, _LOSSES):
            return self._lost <= self._max_failovers
        if isinstance(error, WeightsChanged) and self.sent and self._first.together == 1:
            return False  # the client has them
        return self._max_failovers > 0 and (
            isinstance(error, (*_ELSEWHERE, WeightsChanged)) or (isinstance(error, QueueFull) and self._made > 0)
        )
