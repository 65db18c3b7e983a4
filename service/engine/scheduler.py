"""Who runs: admission in the order of a fair queue, and who gets rows in the next forward.

Knows pages and row budgets; no tensors, no modes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from service.engine.config import EngineConfig
from service.engine.fair_queue import Claim, FairQueue
from service.engine.prefix_cache import Prefix, PrefixCache
from service.engine.pricing import Pricing
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

    def __init__(self, pages: PrefixCache, block_size: int, config: EngineConfig, pricing: Pricing) -> None:
        self.waiting: FairQueue[Waiting] = FairQueue(config.priority_aging_s)
        self.running: list[Sequence] = []
        self._lookups = (0, 0)
        self._pages, self._block_size = pages, block_size
        self._max_running, self._max_rows = config.max_running, config.max_rows
        self._pricing = pricing

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
            params = first.request.params
            mrp_steps = self._pricing.mrp_steps(params)
            prefix = _prefix_of(first.request, self._block_size, params.needs_mrp or bool(mrp_steps))
            lease = self._pages.reserve(pages_needed(first.request, self._block_size), prefix)
            if lease is None:
                break
            self.waiting.pop()
            account = self._pricing.open(first.request, mrp_steps)
            sequence = Sequence(first.request, self._block_size, lease, first.submitted, account)
            self.running.append(sequence)
            self._count_lookup(sequence)
            admitted.append(sequence)
        return admitted

    def take_lookups(self) -> tuple[int, int]:
        """Prompt tokens that the prefix cache was asked for, and had, since the last call."""
        taken, self._lookups = self._lookups, (0, 0)
        return taken

    def plan(self) -> list[tuple[Sequence, list[Row]]]:
        """The rows of the next forward. Sequences left out stand first in the next one."""
        self._pricing.begin(len(self.running))
        budget, served, left_out = self._max_rows, [], []
        for sequence in self.running:
            if sequence.finish_reason is not None:  # it failed as it was started
                continue
            rows = sequence.next_rows(budget)
            budget -= len(rows)
            if rows:
                served.append((sequence, rows))
            else:
                left_out.append(sequence)
        if left_out:
            failed = [sequence for sequence in self.running if sequence.finish_reason is not None]
            self.running = [*left_out, *(sequence for sequence, _ in served), *failed]
        return served

    def publish(self, sequences: Iterable[Sequence]) -> None:
        """Shares the pages that the sequences have written since the last time."""
        for sequence in sequences:
            while sequence.written:
                self._pages.publish(sequence.lease, sequence.written.popleft())

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out and frees its pages."""
        self.running.remove(sequence)
        self._pages.release(sequence.lease)

    def drop_waiting(self, request_id: str) -> Waiting | None:
        """Takes a request out of the queue; None when it is not there."""
        for waiting in self.waiting:
            if waiting.request.request_id == request_id:
                self.waiting.remove(waiting)
                return waiting
        return None

    def _count_lookup(self, sequence: Sequence) -> None:
        if self._pages.shares:
            asked, found = self._lookups
            tokens = len(sequence.request.prompt_token_ids)
            self._lookups = (asked + tokens, found + sequence.stats.cached_tokens)


def _prefix_of(request: GenerationRequest, block_size: int, mrp: bool) -> Prefix:
    """What a request may share with others: its prompt in whole blocks."""
    prompt = request.prompt_token_ids
    blocks = [prompt[end - block_size : end] for end in range(block_size, len(prompt) + 1, block_size)]
    return Prefix(blocks, request.cache_salt, mrp)
