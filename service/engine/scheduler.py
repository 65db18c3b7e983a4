"""The scheduler: admits requests in the order of a fair queue, and assigns the rows of the next forward.

A long prompt is stored in chunks beside decoding requests, so that it does not delay them much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from service.decode.block import MASKED
from service.decode.mode import ScoreMode
from service.engine.config import EngineConfig
from service.engine.drafting.planner import DraftPlanner
from service.engine.fair_rows import Load, fair_rows, shares
from service.engine.forward.rows import Row
from service.engine.prefix_cache import Prefix, PrefixCache
from service.engine.request import GenerationRequest
from service.engine.running_request import RunningRequest, pages_needed
from service.engine.scoring import ScoringRequest
from service.fair_queue import FairQueue, Ticket


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the queue, and the time when it came (engine's clock, seconds)."""

    request: GenerationRequest
    submitted: float


class Scheduler:
    """The waiting queue and the running sequences of one engine.

    `prompt_rows`: the most rows of prompts in a step in which other requests decode.
    """

    def __init__(
        self, pages: PrefixCache, block_size: int, config: EngineConfig, planner: DraftPlanner, prompt_rows: int
    ) -> None:
        self.waiting: FairQueue[Waiting] = FairQueue(config.priority_aging_s)
        self.running: list[RunningRequest] = []
        self._lookups = (0, 0)
        self._pages, self._block_size = pages, block_size
        self._max_running, self._max_rows = config.max_running, config.max_rows
        self._prompt_rows = max(1, prompt_rows)
        self._left_out: list[RunningRequest] = []
        self._planner = planner

    def enqueue(self, waiting: Waiting) -> None:
        """Adds a request to the queue."""
        request = waiting.request
        cost = max(1, -(-request.max_new_tokens // self._block_size))
        arrived = waiting.submitted - request.waited_s
        self.waiting.push(waiting, Ticket(arrived, request.tenant, request.weight, request.priority, cost))

    def admit(self) -> list[RunningRequest]:
        """Moves requests from the queue to the running set while pages and places are free.

        The next request blocks those after it until its pages are free, so that long requests are served, too.
        """
        admitted = []
        while len(self.running) < self._max_running and (first := self.waiting.peek()) is not None:
            params = first.request.params
            mrp_steps = self._planner.mrp_steps(params)
            prefix = _prefix_of(first.request, self._block_size, params.needs_mrp or bool(mrp_steps))
            lease = self._pages.reserve(pages_needed(first.request, self._block_size), prefix)
            if lease is None:
                break
            self.waiting.pop()
            drafts = self._planner.admit(first.request, mrp_steps)
            kind = ScoringRequest if isinstance(params, ScoreMode) else RunningRequest
            sequence = kind(first.request, self._block_size, lease, first.submitted, drafts)
            self.running.append(sequence)
            self._count_lookup(sequence)
            admitted.append(sequence)
        return admitted

    def take_lookups(self) -> tuple[int, int]:
        """Prompt tokens looked up in the prefix cache, and found in it, since the last call."""
        taken, self._lookups = self._lookups, (0, 0)
        return taken

    def plan(
        self, busy: Collection[RunningRequest] = (), most: int | None = None
    ) -> list[tuple[RunningRequest, list[Row]]]:
        """The rows of the next forward: those of decoding requests, then chunks of prompts.

        `busy`: sequences whose forward is under way. `most`: the number of sequences in the forward, at most. A request
        that gets no rows is the first one in the next forward. A tenant gets the rows that its share of the time allows
        (`fair_rows.py`), at least those of one request.
        """
        live = [sequence for sequence in self.running if sequence.finish_reason is None]  # others failed at once
        prompts = {sequence: count for sequence in live if (count := sequence.num_prompt_rows)}
        prompt_rows = self._prompt_rows if len(prompts) < len(live) else self._max_rows
        free = [sequence for sequence in live if sequence not in busy] if busy else live
        ready, rooms = self._in_order(free, prompts), self._rooms(live, prompts, prompt_rows)
        order = ready if rooms else ready[:most]
        chunks = self._chunks(order, prompts, prompt_rows) if prompts else {}
        served, left_out = self._serve(order, chunks, rooms, most)
        self._left_out = left_out + ready[len(order) :]
        if not rooms:
            self._planner.begin(len(order))
            return self._worth(served)
        self._planner.begin(len(served), Counter(sequence.request.tenant for sequence in live))
        parts: dict[str, list[tuple[RunningRequest, list[Row]]]] = {tenant: [] for tenant in rooms}
        for pair in served:
            parts[pair[0].request.tenant].append(pair)
        return [pair for part in parts.values() for pair in self._worth(part)]

    def _rooms(
        self, live: list[RunningRequest], prompts: Mapping[RunningRequest, int], prompt_rows: int
    ) -> dict[str, int]:
        """The most rows of each tenant in the next forward. Empty: as many as they want."""
        if len({sequence.request.tenant for sequence in live}) < 2:
            return {}
        costs, loads, stored = self._planner.costs(), dict[str, Load](), Counter[str]()
        for sequence in live:
            tenant = sequence.request.tenant
            load = loads.setdefault(tenant, Load(sequence.request.weight))
            if sequence in prompts:
                stored[tenant] += prompts[sequence]
            else:
                rows = max(1, sequence.num_rows)
                load.rows, load.reading = load.rows + rows, load.reading + rows * costs.reading(sequence.num_pages)
        for tenant, rows in stored.items():
            loads[tenant].rows += min(rows, prompt_rows)
        return fair_rows(loads, costs.backbone.at, self._max_rows)

    def _serve(
        self,
        order: list[RunningRequest],
        chunks: Mapping[RunningRequest, int],
        rooms: Mapping[str, int],
        most: int | None,
    ) -> tuple[list[tuple[RunningRequest, list[Row]]], list[RunningRequest]]:
        """The sequences that get rows, with these rows, and those that get none."""
        budget, left = self._max_rows, dict(rooms)
        served, left_out = list[tuple[RunningRequest, list[Row]]](), list[RunningRequest]()
        for sequence in order:
            chunk, rows = chunks.get(sequence), list[Row]()
            tenant, room = sequence.request.tenant, budget
            if rooms:
                room = min(budget, left[tenant]) if len(served) != most else 0
            if room > 0:
                rows = sequence.next_rows(room, chunk)
                if not rows and rooms and left[tenant] == rooms[tenant]:  # each tenant gets on, if only by one request
                    rows = sequence.next_rows(budget, chunk)
            if rows:
                served.append((sequence, rows))
                budget -= len(rows)
                if rooms:
                    left[tenant] -= len(rows)
            else:
                left_out.append(sequence)
        return served, left_out

    def _worth(self, served: list[tuple[RunningRequest, list[Row]]]) -> list[tuple[RunningRequest, list[Row]]]:
        """The rows of one tenant, or of all, without those of drafts that the forward's time is not worth."""
        offers = [sequence.expected_gains(rows) if len(rows) > 1 else () for sequence, rows in served]
        if not any(offers):
            return served
        certain = sum([len(rows) - len(gains) for (_, rows), gains in zip(served, offers, strict=True)])
        kept = self._planner.accepted(certain, offers, served[0][0].request.tenant)
        return [
            (sequence, rows[: len(rows) - len(gains) + count])
            for (sequence, rows), gains, count in zip(served, offers, kept, strict=True)
        ]

    def _in_order(self, free: list[RunningRequest], prompts: Collection[RunningRequest]) -> list[RunningRequest]:
        """Those that were left out of the last forward come first, those that store prompts last."""
        if not self._left_out and not prompts:
            return free
        known, left_out = set(free), set(self._left_out)
        first = [sequence for sequence in self._left_out if sequence in known]
        others = [sequence for sequence in free if sequence not in left_out]
        return first + sorted(others, key=prompts.__contains__)

    def _chunks(
        self, order: list[RunningRequest], prompts: Mapping[RunningRequest, int], total: int
    ) -> dict[RunningRequest, int]:
        """The rows of each prompt in this step, of so many in total, which are divided between tenants first."""
        tenants = dict[str, dict[RunningRequest, int]]()
        for sequence in order:
            if sequence in prompts:
                tenants.setdefault(sequence.request.tenant, {})[sequence] = prompts[sequence]
        weights = [next(iter(wanted)).request.weight for wanted in tenants.values()]
        totals = shares([sum(wanted.values()) for wanted in tenants.values()], total, weights)
        chunks = dict[RunningRequest, int]()
        for wanted, rows in zip(tenants.values(), totals, strict=True):
            chunks.update(zip(wanted, shares(list(wanted.values()), rows), strict=True))
        return chunks

    def publish(self, sequences: Iterable[RunningRequest]) -> None:
        """Shares the pages that the sequences have written since the last call."""
        for sequence in sequences:
            while sequence.written:
                self._pages.publish(sequence.lease, sequence.written.popleft())

    def remove(self, sequence: RunningRequest) -> None:
        """Removes a sequence and frees its pages. What it has written stays shared."""
        self.running.remove(sequence)
        self.publish([sequence])
        self._pages.release(sequence.lease)
        sequence.release()

    def drop_waiting(self, request_id: str) -> Waiting | None:
        """Removes a request from the queue. None if it is not there."""
        for waiting in self.waiting:
            if waiting.request.request_id == request_id:
                self.waiting.remove(waiting)
                return waiting
        return None

    def _count_lookup(self, sequence: RunningRequest) -> None:
        if self._pages.shares:
            asked, found = self._lookups
            tokens = len(sequence.request.prompt_token_ids)
            self._lookups = (asked + tokens, found + sequence.stats.cached_tokens)


def _prefix_of(request: GenerationRequest, block_size: int, mrp: bool) -> Prefix:
    """The lookup of a request's prompt in whole blocks, up to the first masked place."""
    prompt = request.prompt_token_ids
    if isinstance(request.params, ScoreMode):
        prompt = prompt[: prompt.index(MASKED)]
    blocks = [prompt[end - block_size : end] for end in range(block_size, len(prompt) + 1, block_size)]
    return Prefix(blocks, request.cache_salt, mrp)
