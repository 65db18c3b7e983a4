"""The way of a request from the routes to the replicas: admission, draining, the log, failover, the key's charge."""

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

from service.admission.charge import TokenCharge
from service.admission.controller import AdmissionController
from service.errors import MrpServeError
from service.gateway.backend import Backend
from service.gateway.draining import Draining
from service.gateway.request_log import note_ending, note_request
from service.gateway.slow_readers import Relay, SlowReaders
from service.messages.wire import (
    Answer,
    AnswerStream,
    Chunk,
    Encoded,
    Ending,
    Failure,
    Progress,
    ReplicaRequest,
    ReplicaStream,
)
from service.routing.failover import Attempts, FailoverPolicy


class RequestPipeline:
    """Answers requests that are admitted. `model`: the model's name in traces.

    `in_flight`: the number of answers in progress, including those that wait for a slot. `readers`: the clients
    that read slowly.
    """

    def __init__(
        self,
        backend: Backend,
        admission: AdmissionController,
        draining: Draining,
        failover: FailoverPolicy,
        model: str = "",
    ) -> None:
        self._backend, self._admission, self._draining = backend, admission, draining
        self._failover = failover
        self._model = model
        self.readers = SlowReaders()
        self.in_flight = 0

    async def complete(self, request: ReplicaRequest, charge: TokenCharge) -> Answer:
        """The whole answer, in few chunks (`stream_interval`). After loss it goes on after the last chunk that came."""
        chunks: list[Chunk] = []
        [ending] = [item async for item in self._items(request, charge, chunks) if isinstance(item, Ending)]
        return Answer.from_chunks(chunks, ending)

    def stream(self, request: ReplicaRequest, charge: TokenCharge) -> AnswerStream:
        """The answer block by block, every block once, then its ending.

        The slot is free when the replica's answer ends, or the stream is closed. After a loss, the steps of an
        unfinished block come again.
        """
        return Relay(self.readers, request, self._items(request, charge)).items()

    async def encode(self, request: ReplicaRequest, charge: TokenCharge) -> Encoded:
        """The prompt of a request as token ids, and token ids as text."""
        with self._counted(charge), self._draining.abortable():
            async with self._admission.slot(request, charge) as usage:
                attempts = Attempts(request, self._failover)
                while True:
                    try:
                        encoded = await self._backend.encode(attempts.request)
                        if isinstance(encoded, Failure):
                            raise encoded.error
                        usage.count(len(encoded.token_ids))
                        return encoded
                    except MrpServeError as error:
                        await attempts.next(error)

    async def _items(
        self, request: ReplicaRequest, charge: TokenCharge, chunks: list[Chunk] | None = None
    ) -> AnswerStream:
        """The items of an answer. `chunks`: as in `Attempts`."""
        with self._counted(charge):
            async with AsyncExitStack() as stack:
                with self._draining.abortable():
                    usage = await stack.enter_async_context(self._admission.slot(request, charge))
                attempts, ending = Attempts(request, self._failover, chunks), None
                note_request(attempts.request, self._model)
                items = self._backend.stream(attempts.request)
                stack.push_async_callback(lambda: items.aclose())  # noqa: PLW0108 - the items of the last attempt
                while True:
                    try:
                        item = await self._next(items)
                    except MrpServeError as error:
                        self._backend.note_error(error)
                        await items.aclose()
                        if ending is not None:
                            return
                        with self._draining.abortable():
                            await attempts.next(error)
                        items = self._backend.stream(attempts.request)
                        continue
                    if item is None:
                        if ending is None:
                            raise AssertionError("a stream ended without an ending")
                        return
                    if isinstance(item, Chunk):
                        attempts.add(item)
                        ending = item.ending
                    elif isinstance(item, Ending):
                        ending = item
                    if item is not ending:
                        usage.add(item)
                        yield item
                    if ending is not None:
                        note_ending(ending, self._model)
                        usage.add(ending)
                        yield ending

    async def _next(self, items: ReplicaStream) -> Progress | Chunk | Ending | None:
        """The next item, None after the last. Raises the error of an attempt that failed."""
        with self._draining.abortable():
            item = await anext(items, None)
        if isinstance(item, Failure):
            raise item.error
        return item

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
