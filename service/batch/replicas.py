"""The replicas of a batch in this process: one engine's process for each device, started again when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Self

from service.errors import MrpServeError
from service.ipc.connections import tune_interpreter
from service.messages.replica_status import ModelCard
from service.messages.wire import Answer, Chunk, Ending, Failure, ReplicaRequest
from service.replica.start import start_replica
from service.routing.failover import Attempts, FailoverPolicy
from service.settings.settings import Settings

if TYPE_CHECKING:  # its import takes seconds, in which `start_replica` starts the engine's process
    from service.replica.replica import Replica

_log = logging.getLogger(__name__)

#: seconds between two checks for a lost engine
_WATCH_S = 0.1
#: requests at a replica, as a multiple of a service's. Many answers may end in one step of the engine.
_AHEAD = 2
#: requests that may wait in an engine
_MAX_WAITING = 4096


class BatchReplicas:
    """Running replicas, made by `start`. `slots`: requests at once. `failure`: why one did not start again."""

    def __init__(self, settings: Sequence[Settings]) -> None:
        self._settings = [replica.model_copy(update={"max_waiting": _MAX_WAITING}) for replica in settings]
        self._policy = FailoverPolicy(settings[0].max_failovers)
        self._replicas: dict[int, Replica] = {}
        self._loads = [0] * len(settings)
        self._changed = asyncio.Event()
        self._watches: list[asyncio.Task[None]] = []
        self.failure: MrpServeError | None = None
        self.card: ModelCard
        self.slots = 0

    @classmethod
    async def start(cls, settings: Sequence[Settings]) -> Self:
        """Starts a replica for each of these settings. Raises the errors of loading."""
        replicas = cls(settings)
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(settings)):
                    group.create_task(replicas._start(index))
        except BaseExceptionGroup as errors:
            replicas.close()
            raise errors.exceptions[0] from None
        replicas.card = replicas._replicas[0].status().card
        replicas.slots = _AHEAD * replicas.card.slots * len(settings)
        replicas._watches = [asyncio.create_task(replicas._watch(index)) for index in range(len(settings))]
        tune_interpreter()
        return replicas

    async def answer(self, request: ReplicaRequest) -> Answer:
        """The whole answer of a request. If its replica is lost, another one continues it."""
        chunks: list[Chunk] = []
        attempts = Attempts(request, self._policy, chunks)
        while True:
            try:
                ending = await self._attempt(attempts)
            except MrpServeError as error:
                await attempts.next(error)
            else:
                return Answer.from_chunks(chunks, ending)

    def close(self) -> None:
        for watch in self._watches:
            watch.cancel()
        for replica in self._replicas.values():
            replica.close()

    async def _attempt(self, attempts: Attempts) -> Ending:
        index = await self._least_loaded()
        self._loads[index] += 1
        try:
            async with aclosing(self._replicas[index].stream(attempts.request)) as items:
                async for item in items:
                    if isinstance(item, Failure):
                        raise item.error
                    if isinstance(item, Chunk):
                        attempts.add(item)
                    ending = item if isinstance(item, Ending) else getattr(item, "ending", None)
                    if ending is not None:
                        return ending
        finally:
            self._loads[index] -= 1
        raise AssertionError("a stream ended without an ending")

    async def _least_loaded(self) -> int:
        """The replica with the fewest requests, as soon as there is any."""
        while not self._replicas:
            if self.failure is not None:
                raise self.failure
            self._changed.clear()
            await self._changed.wait()
        return min(self._replicas, key=lambda index: self._loads[index])

    async def _start(self, index: int) -> None:
        self._replicas[index] = await start_replica(f"batch-{index}", self._settings[index])
        self._changed.set()

    async def _watch(self, index: int) -> None:
        """Starts the replica again whenever it is lost. Without any replica, requests fail if that is impossible."""
        while True:
            while (failure := self._replicas[index].status().failure) is None:
                await asyncio.sleep(_WATCH_S)
            _log.warning("an engine is lost, and starts again: %s", failure)
            self._replicas.pop(index).close()
            try:
                await self._start(index)
            except MrpServeError as error:
                _log.error("an engine does not start again: %s", error.message)
                self.failure = error
                self._changed.set()
                return
