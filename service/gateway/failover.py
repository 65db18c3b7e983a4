"""One answer from several replicas: where one is lost, another goes on after the last block that came.

A continued request is the prompt and what was sent, with the same seed, which decodes to the same tokens. A request
that is wrong, or meets a bug, is not tried again. A request whose engine failed is tried once more: if the second
engine fails too, the request is suspected and no third replica gets it. Knows no Ray, no HTTP and no engine. The
ingress asks every request through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

from service.errors import (
    EngineFailed,
    MrpServeError,
    OutOfMemory,
    Quarantined,
    QueueFull,
    ReplicaLost,
    ReplicaStopping,
)
from service.gateway.backend import Backend
from service.wire import Answer, Answering, Chunk, Ending, Failure, Resume, Work

#: the first pause before another attempt, which doubles, and the longest
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

#: what may have been the request's own doing: it is tried again a limited number of times
_LOSSES = (ReplicaLost, EngineFailed, OutOfMemory)

#: the codes of all errors that may lead to another attempt
REASONS = tuple(error.code for error in (*_LOSSES, ReplicaStopping, QueueFull))


class Failover:
    """Asks a backend as often as an answer needs. `count` is told of every error that leads to another attempt."""

    def __init__(self, backend: Backend, max_failovers: int, count: Callable[[MrpServeError], None]) -> None:
        self._backend = backend
        self._max_failovers = max_failovers
        self._count = count

    async def complete(self, work: Work) -> Answer:
        """The whole answer. A lost one is decoded again from the start."""
        attempts = _Attempts(work, self._max_failovers, self._count)
        while True:
            try:
                result = await self._backend.complete(attempts.work)
                if isinstance(result, Failure):
                    raise result.error
                return result
            except MrpServeError as error:
                await attempts.another(error)

    async def stream(self, work: Work) -> Answering:
        """The answer block by block, every block once; closing ends the attempt at hand."""
        attempts = _Attempts(work, self._max_failovers, self._count)
        while True:
            try:
                async with aclosing(self._backend.stream(attempts.work)) as items:
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
    """The attempts at one request: what the next one is asked for, and whether there is one."""

    def __init__(self, work: Work, max_failovers: int, count: Callable[[MrpServeError], None]) -> None:
        self.work, self.complete = work, False
        self._first = work
        self._max_failovers = max_failovers
        self._count = count
        self._sent: list[Chunk] = []
        self._made = self._lost = self._failed_engines = 0

    def took(self, item: Chunk | Ending) -> None:
        """An item is on its way to the client; no other replica needs to send it."""
        self.complete = isinstance(item, Ending) or item.ending is not None
        if isinstance(item, Chunk):
            self._sent.append(item)

    async def another(self, error: MrpServeError) -> None:
        """Returns when the next attempt is due; raises the error if there shall be none."""
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
        # A name of its own: the replica that is asked may still be busy with letting go of the last attempt.
        name = f"{self._first.request_id}.{self._made}"
        self.work = replace(self._first, request_id=name, resume=self._resume(), attempt=self._made)
        await asyncio.sleep(pause)

    def _resume(self) -> Resume:
        if not self._sent:
            return Resume()
        tokens = tuple(token for chunk in self._sent for token in chunk.token_ids)
        return Resume(tokens, self._sent[-1].index + 1, self._sent[-1].stats)

    def _elsewhere(self, error: MrpServeError) -> bool:
        """Whether another replica may do better. A queue that is full is waited for by who was let in once."""
        if isinstance(error, _LOSSES):
            return self._lost <= self._max_failovers
        return self._max_failovers > 0 and (
            isinstance(error, ReplicaStopping) or (isinstance(error, QueueFull) and self._made > 0)
        )
