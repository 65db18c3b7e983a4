"""Who runs: admission in the order of a fair queue, and who gets rows in the next forward.

Knows pages and row budgets; no tensors, no modes.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.engine.fair_queue import AGING_S, Claim, FairQueue
from service.engine.kv_cache import PagePool
from service.engine.request import GenerationRequest
from service.engine.rows import Row
from service.engine.sequence import Sequence, pages_needed


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the queue and when it came (clock of the engine, seconds)."""

    request: GenerationRequest
    submitted: float


class Scheduler:
    """The waiting queue and the running sequences of one engine."""

    def __init__(
        self, pool: PagePool, block_size: int, max_running: int, max_rows: int, priority_aging_s: float = AGING_S
    ) -> None:
        self.waiting: FairQueue[Waiting] = FairQueue(priority_aging_s)
        self.running: list[Sequence] = []
        self._pool, self._block_size = pool, block_size
        self._max_running, self._max_rows = max_running, max_rows

    def enqueue(self, waiting: Waiting) -> None:
        """Puts a request into the queue."""
        request = waiting.request
        cost = -(-request.max_new_tokens // self._block_size)
        arrived = waiting.submitted - request.waited_s
        self.waiting.push(waiting, Claim(arrived, request.tenant, request.weight, request.priority, cost))

    def admit(self) -> list[Sequence]:
        """Moves requests from the queue to the running set while pages and places are free.

        Whoever's turn it is holds up the others until its pages are free, so that no long request starves.
        """
        admitted = []
        while len(self.running) < self._max_running and (first := self.waiting.peek()) is not None:
            pages = self._pool.reserve(pages_needed(first.request, self._block_size))
            if pages is None:
                break
            self.waiting.pop()
            sequence = Sequence(first.request, self._block_size, pages, first.submitted)
            self.running.append(sequence)
            admitted.append(sequence)
        return admitted

    def plan(self) -> list[tuple[Sequence, list[Row]]]:
        """The rows of the next forward. Sequences left out stand first in the next one."""
        budget, served, left_out = self._max_rows, [], []
        for sequence in self.running:
            rows = sequence.next_rows(budget)
            budget -= len(rows)
            if rows:
                served.append((sequence, rows))
            else:
                left_out.append(sequence)
        if left_out:
            self.running = [*left_out, *(sequence for sequence, _ in served)]
        return served

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out and frees its pages."""
        self.running.remove(sequence)
        self._pool.release(sequence.pages)

    def drop_waiting(self, request_id: str) -> Waiting | None:
        """Takes a request out of the queue; None when it is not there."""
        for waiting in self.waiting:
            if waiting.request.request_id == request_id:
                self.waiting.remove(waiting)
                return waiting
        return None
