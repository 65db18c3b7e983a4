"""The way of a request from the routes to the replicas: admission, draining, the log, the charge to the API key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, contextmanager

from msgspec.structs import replace

from service.admission.charge import AnswerUsage, TokenCharge
from service.admission.controller import AdmissionController
from service.gateway.availability import Availability
from service.gateway.draining import Draining
from service.gateway.failover import Failover
from service.gateway.request_log import note_ending, with_origin
from service.gateway.slow_readers import SlowReaders
from service.wire import Answer, Answering, Ending, ReplicaRequest

#: blocks of a whole answer that come in one chunk
_TOGETHER = 16


class RequestPipeline:
    """Answers requests that are admitted. While one waits for its slot, `availability` looks for new slots.

    `model`: its name in traces. `in_flight`: the number of answers in progress, including those that wait for a slot.
    """

    def __init__(
        self,
        replicas: Failover,
        admission: AdmissionController,
        availability: Availability,
        draining: Draining,
        model: str = "",
    ) -> None:
        self._replicas = replicas
        self._admission = admission
        self._availability = availability
        self._draining = draining
        self._model = model
        self._readers = SlowReaders()
        self.in_flight = 0

    async def complete(self, request: ReplicaRequest, charge: TokenCharge) -> Answer:
        """The whole answer: a stream of long chunks, gathered."""
        with self._counted(charge), self._draining.until_cut():
            async with self._slot(request, charge) as usage:
                request = with_origin(replace(request, together=_TOGETHER), self._model)
                answer = await self._replicas.complete(request)
                note_ending(answer.ending, self._model)
                usage.take(answer)
                return answer

    async def tokens(self, request: ReplicaRequest, charge: TokenCharge) -> int:
        """The number of tokens of a request's prompt."""
        with self._counted(charge), self._draining.until_cut():
            async with self._slot(request, charge) as usage:
                tokens = await self._replicas.tokens(request)
                usage.count(tokens)
                return tokens

    def stream(self, request: ReplicaRequest, charge: TokenCharge) -> Answering:
        """The answer block by block. The slot is free when the replica's answer ends, or the stream is closed."""
        return self._readers.relay(request, self._blocks(request, charge))

    async def _blocks(self, request: ReplicaRequest, charge: TokenCharge) -> Answering:
        with self._counted(charge):
            async with AsyncExitStack() as held:
                with self._draining.until_cut():
                    usage = await held.enter_async_context(self._slot(request, charge))
                request = with_origin(request, self._model)
                items = await held.enter_async_context(aclosing(self._replicas.stream(request)))
                while True:
                    with self._draining.until_cut():
                        item = await anext(items, None)
                    if item is None:
                        return
                    if isinstance(item, Ending):
                        note_ending(item, self._model)
                    usage.take(item)
                    yield item

    def _slot(self, request: ReplicaRequest, charge: TokenCharge) -> AbstractAsyncContextManager[AnswerUsage]:
        return self._admission.slot(request, charge, self._availability.watch)

    @contextmanager
    def _counted(self, charge: TokenCharge) -> Iterator[None]:
        """Counts an answer in progress. The charge hears of an `Exception`.

        A client that disconnects raises no `Exception` but a cancellation.
        """
        self.in_flight += 1
        try:
            yield
        except Exception as error:
            charge.fail(error)
            raise
        finally:
            self.in_flight -= 1
