"""The layer between the routes and the replicas: waiting for a place, draining, and charging the API key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, contextmanager

from service.admission.charge import AnswerUsage, TokenCharge
from service.admission.controller import AdmissionController
from service.gateway.availability import Availability
from service.gateway.draining import Draining
from service.gateway.request_log import LoggedAnswers
from service.gateway.slow_readers import SlowReaders
from service.wire import Answer, Answering, Work


class PlacedAnswers:
    """Answers with a place at a replica. While a request waits for its place, `availability` looks for new ones.

    `in_flight`: the number of answers in progress, including those that wait for a place.
    """

    def __init__(
        self, answers: LoggedAnswers, admission: AdmissionController, availability: Availability, draining: Draining
    ) -> None:
        self._answers = answers
        self._admission = admission
        self._availability = availability
        self._draining = draining
        self._readers = SlowReaders()
        self.in_flight = 0

    async def complete(self, work: Work, charge: TokenCharge) -> Answer:
        """The whole answer."""
        with self._in_hand(charge), self._draining.until_cut():
            async with self._place(work, charge) as usage:
                answer = await self._answers.complete(work)
                usage.take(answer)
                return answer

    async def tokens(self, work: Work, charge: TokenCharge) -> int:
        """The number of tokens of a work's prompt."""
        with self._in_hand(charge), self._draining.until_cut():
            async with self._place(work, charge) as usage:
                tokens = await self._answers.tokens(work)
                usage.count(tokens)
                return tokens

    async def stream(self, work: Work, charge: TokenCharge) -> Answering:
        """The answer block by block. The place is free when the replica's answer ends, or the stream is closed."""
        relay = self._readers.relay(work, self._placed(work, charge))
        try:
            while (item := await relay.next()) is not None:
                yield item
        finally:
            await relay.close()

    async def _placed(self, work: Work, charge: TokenCharge) -> Answering:
        with self._in_hand(charge):
            async with AsyncExitStack() as held:
                with self._draining.until_cut():
                    usage = await held.enter_async_context(self._place(work, charge))
                items = await held.enter_async_context(aclosing(self._answers.stream(work)))
                while True:
                    with self._draining.until_cut():
                        item = await anext(items, None)
                    if item is None:
                        return
                    usage.take(item)
                    yield item

    def _place(self, work: Work, charge: TokenCharge) -> AbstractAsyncContextManager[AnswerUsage]:
        return self._admission.slot(work, charge, self._availability.watch)

    @contextmanager
    def _in_hand(self, charge: TokenCharge) -> Iterator[None]:
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
