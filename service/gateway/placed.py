"""The layer between the routes and the replicas: waiting for a place, draining, and charging the API key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, contextmanager

from service.admission.bill import Bill, Job
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

    async def complete(self, work: Work, bill: Bill) -> Answer:
        """The whole answer."""
        with self._in_hand(bill), self._draining.until_cut():
            async with self._place(work, bill) as job:
                answer = await self._answers.complete(work)
                job.take(answer)
                return answer

    async def tokens(self, work: Work, bill: Bill) -> int:
        """The number of tokens of a work's prompt."""
        with self._in_hand(bill), self._draining.until_cut():
            async with self._place(work, bill) as job:
                tokens = await self._answers.tokens(work)
                job.count(tokens)
                return tokens

    async def stream(self, work: Work, bill: Bill) -> Answering:
        """The answer block by block. The place is free when the replica's answer ends, or the stream is closed."""
        relay = self._readers.relay(work, self._placed(work, bill))
        try:
            while (item := await relay.next()) is not None:
                yield item
        finally:
            await relay.close()

    async def _placed(self, work: Work, bill: Bill) -> Answering:
        with self._in_hand(bill):
            async with AsyncExitStack() as held:
                with self._draining.until_cut():
                    job = await held.enter_async_context(self._place(work, bill))
                items = await held.enter_async_context(aclosing(self._answers.stream(work)))
                while True:
                    with self._draining.until_cut():
                        item = await anext(items, None)
                    if item is None:
                        return
                    job.take(item)
                    yield item

    def _place(self, work: Work, bill: Bill) -> AbstractAsyncContextManager[Job]:
        return self._admission.place(work, bill, self._availability.watch)

    @contextmanager
    def _in_hand(self, bill: Bill) -> Iterator[None]:
        """Counts an answer in progress. The bill hears of an `Exception`.

        A client that disconnects raises no `Exception` but a cancellation.
        """
        self.in_flight += 1
        try:
            yield
        except Exception as error:
            bill.fail(error)
            raise
        finally:
            self.in_flight -= 1
