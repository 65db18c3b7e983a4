"""The scheduler: starts requests in the order of a fair queue, and assigns the rows of the next forward.

A long prompt is stored in chunks beside decoding requests. A forward takes at most as long as each tenant's rows alone
would, divided by the tenant's share of all weights; further rows wait. So a tenant with many rows does not slow down
others. The price: forwards are smaller while tenants of unlike size run.

KV pages grow with the answers. A request starts if its first pages are free and the expected peak of all pages fits
(`page_forecast.py`). If pages run short nevertheless, requests lose theirs (`victims.py`). Such a *preempted* request
stays as it is. Its blocks stay in the prefix cache until their pages are needed; lost blocks are stored again. It runs
again before new ones start, the oldest first, and after another request has ended. So requests do not take pages from
each other in turns.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from service.decode.block import MASKED
from service.decode.mode import ScoreMode
from service.engine.causal_request import CausalRequest, verifies_in_one_row
from service.engine.config import EngineConfig
from service.engine.diffusion_request import DiffusionRequest
from service.engine.drafting.planner import DraftPlanner
from service.engine.forward.rows import LINES, Row
from service.engine.observer import CacheCounts
from service.engine.page_forecast import PageForecast
from service.engine.prefix_cache import BlockTokens, Lease, Prefix, PrefixCache
from service.engine.request import GenerationRequest
from service.engine.running_request import Admitted, RunningRequest
from service.engine.scoring import ScoringRequest
from service.engine.shifted_request import ShiftedRequest
from service.engine.victims import choose_victim
from service.fair_queue import FairQueue, Ticket
from service.model.config import ModelConfig

#: the tokens of a prompt from which on requests wait for another request that stores the same prompt
_LONG_PREFIX = 64

#: the least share of the running requests that begins a step ahead of results
_MIN_AHEAD = 0.75

#: the requests that have rows in a forward, and the rows
StepRows = list[tuple[RunningRequest, list[Row]]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the queue. `submitted`: seconds of the engine's clock. `blocks`: the whole ones of its prompt."""

    request: GenerationRequest
    submitted: float
    blocks: Sequence[BlockTokens]


class Scheduler:
    """The waiting queue and the requests that have started. `prompt_rows`: rows of prompts beside decoding requests.

    `started`: all of them in the order of their starts. Each is `running`, or `preempted` and without pages.
    """

    def __init__(
        self, pages: PrefixCache, model: ModelConfig, config: EngineConfig, planner: DraftPlanner, prompt_rows: int
    ) -> None:
        self.waiting: FairQueue[Waiting] = FairQueue()
        self.started: list[RunningRequest] = []
        self.running: list[RunningRequest] = []
        self.preempted: list[RunningRequest] = []
        self._counts = CacheCounts()
        self.forecast = PageForecast()
        self._refused: object = None  # the next one to start, for which there is no room until another one ends
        self._pages, self._model, self._block_size = pages, model, model.block_size
        self._max_running, self._max_rows = config.max_running, config.max_rows
        self._prompt_rows = max(1, prompt_rows)
        self._long_prefix = -(-_LONG_PREFIX // model.block_size)
        self._left_out: list[RunningRequest] = []
        self._prompts: list[RunningRequest] = []  # those whose prompts may not be stored yet, in the order of `running`
        self._tenants = Counter[str]()  # the running requests of each
        self._planner = planner
        #: the first of a request's lines of the state table, for each request that can start
        self._lines = [1 + LINES * number for number in range(config.max_running if config.async_scheduling else 0)]

    def enqueue(self, request: GenerationRequest, submitted: float) -> None:
        size, prompt = self._block_size, request.prompt_token_ids
        if isinstance(request.mode, ScoreMode):
            prompt = prompt[: prompt.index(MASKED) - self._model.shifted]  # the token before may predict it
        blocks = [prompt[end - size : end] for end in range(size, len(prompt) + 1, size)]
        cost, arrived = max(1, -(-request.max_new_tokens // size)), submitted - request.waited_s
        sharing = request.sharing
        ticket = Ticket(arrived, sharing.tenant, sharing.tenant_share, sharing.priority, cost)
        self.waiting.push(Waiting(request, submitted, blocks), ticket)

    def resume(self) -> None:
        """Preempted requests run again, the oldest first, while there is room."""
        while self.preempted and ((first := self.preempted[0]) is not self._refused or not self.running):
            lease = first.lease
            lease.prefix = replace(lease.prefix, blocks=tuple(first.blocks.history))
            if not self._take_pages(first, lease):
                return
            self._counts.recomputed += first.take_pages() * self._block_size
            self._prompts.append(first)
            self._sort()

    def start_queued(self) -> list[RunningRequest]:
        """Moves requests from the queue to the running set while there is room, and no preempted one waits.

        The next request blocks all later requests until there is room for it, so that long requests are served, too.
        """
        started = []
        while len(self.started) < self._max_running and not self.preempted:
            first = self.waiting.peek()
            if first is None or first is self._refused:
                break
            request = self._planner.with_plan(first.request)
            uses_mrp = self._planner.starts_with_mrp(request)
            lease = self._lease(request, Prefix(first.blocks, request.sharing.cache_salt, uses_mrp))
            if not self._take_pages(first, lease):
                break
            self.waiting.pop()
            drafts = self._planner.plan_drafts(request, uses_mrp=uses_mrp)
            first_line = self._lines.pop() if self._lines else 0
            running = _running(Admitted(request, self._model, lease, first.submitted, drafts, first_line))
            if self._pages.shares:
                self._counts.looked_up += len(request.prompt_token_ids)
                self._counts.cached += running.stats.cached_tokens
            self.started.append(running)
            self.running.append(running)
            self._prompts.append(running)
            self._tenants[request.sharing.tenant] += 1
            started.append(running)
        return started

    def _lease(self, request: GenerationRequest, prefix: Prefix) -> Lease:
        """A lease without pages. A request that scores takes all of its pages at once, others grow."""
        limit, num_prompt = pages_needed(request, self._block_size), len(prefix.blocks)
        least = num_prompt + -(-request.sampling.min_tokens // self._block_size)
        least = min(limit, least) if request.stop_token_ids else limit
        lease = Lease([], prefix, limit, least, wanted=limit, num_prompt=num_prompt)
        if not isinstance(request.mode, ScoreMode):
            lease.want(num_prompt)
        return lease

    def _take_pages(self, newcomer: RunningRequest | Waiting, lease: Lease) -> bool:
        """Takes the first pages of a request if they are free and the expected peak fits.

        One request always fits. One that is refused is not looked at again before another one has ended.
        """
        fits = not self.running
        if not fits:
            leases = [*[running.lease for running in self.running], lease]
            peak = self.forecast.peak(leases, self._pages.num_used, self._pages.num_new(lease))
            fits = peak <= self._pages.capacity
        taken = fits and self._pages.fill(lease)
        self._refused = None if taken else newcomer
        return taken

    def _grow(self, *, ahead: bool) -> list[RunningRequest]:
        """The requests get the pages that their next rows need, the oldest first, at last from others.

        -> those that wait for pages. While a step is under way nobody loses pages.
        """
        short = [running for running in self.running if len(running.lease.pages) < running.lease.wanted]
        for running in short:
            while running.lease.pages and not self._pages.grow(running.lease) and not ahead:
                if (victim := choose_victim(self.running)) is None:
                    break
                self.preempt(victim)
        return [running for running in short if 0 < len(running.lease.pages) < running.lease.wanted]

    def preempt(self, victim: RunningRequest) -> None:
        """Takes the pages of a running request. None of its forwards may be under way."""
        self._pages.release(victim.lease)
        victim.lose_pages()
        if victim in self._prompts:
            self._prompts.remove(victim)
        self._sort()
        self._refused = self.preempted[0]
        self._counts.preemptions += 1

    def _sort(self) -> None:
        self.running = [running for running in self.started if running.lease.pages]
        self.preempted = [running for running in self.started if not running.lease.pages]
        self._tenants = Counter([running.request.sharing.tenant for running in self.running])

    def pop_counts(self) -> CacheCounts:
        counts, self._counts = self._counts, CacheCounts()
        return counts

    def plan(self, *, ahead: bool = False) -> StepRows:
        """The rows of the next forward: rows of decoding requests, then chunks of prompts.

        A request that gets no rows is the first one in the next forward. A tenant gets the rows of one request at
        least. `ahead`: whether the last forward's results are not read yet. Requests that need them sit this one out.
        If they are many, all wait for the results, since the device's time is better spent on all. So do all while
        pages are short.
        """
        short = self._grow(ahead=ahead)
        if short and ahead:
            return []
        live = [running for running in self.running if running.finish_reason is None]  # some failed when they started
        if short:
            live = [running for running in live if running not in short]
        free = [running for running in live if not running.waits] if ahead else live
        if ahead and len(free) < _MIN_AHEAD * len(live):
            return []
        unstored = [running for running in self._prompts if running.finish_reason is None]
        prompts = {running: count for running in unstored if (count := running.num_prompt_rows)}
        self._prompts = [*prompts]
        if prompts and self._pages.shares:
            followers = self._share_prompts(prompts)
            live = [running for running in live if running not in followers]
            free = [running for running in free if running not in followers]
        prompt_rows = self._prompt_rows if len(prompts) < len(live) else self._max_rows
        if not free:
            self._left_out = []
            return []
        order, limits = self._in_order(free, prompts), self._tenant_limits(live, prompts, prompt_rows)
        chunks = self._chunks(order, prompts, prompt_rows) if prompts else {}
        served, self._left_out = self._serve(order, chunks, limits)
        self._planner.begin(len(served if limits else order), sum(chunks.values()))
        return self._without_poor_drafts(served)

    def _share_prompts(self, prompts: dict[RunningRequest, int]) -> set[RunningRequest]:
        """Lets requests use blocks that others have stored since they started. Updates `prompts`.

        Returns the requests with long prompts whose next blocks another request stores. They are no longer in
        `prompts`.
        """
        followers, stored = set[RunningRequest](), set[object]()
        for running in [running for running in prompts if running.stores_next]:
            lease, prefix = running.lease, running.lease.prefix
            if count := self._pages.extend(lease):
                running.skip_stored(count)
                if not running.stats.num_preemptions:
                    self._counts.cached += count * self._block_size
                prompts[running] -= count
                if not prompts[running]:
                    del prompts[running]
                    continue
            start = lease.num_shared
            path = tuple(prefix.blocks[start : start + self._long_prefix])
            key = (lease.nodes[-1] if lease.nodes else None, prefix.salt, prefix.mrp, path)
            if key not in stored:
                stored.add(key)
            elif len(prefix.blocks) >= self._long_prefix:
                followers.add(running)
                del prompts[running]
        return followers

    def _tenant_limits(
        self, live: list[RunningRequest], prompts: Mapping[RunningRequest, int], prompt_rows: int
    ) -> dict[str, int]:
        """The maximum of rows of each tenant in the next forward. Empty: no tenant is limited."""
        if len(self._tenants) < 2 or len({running.request.sharing.tenant for running in live}) < 2:
            return {}
        costs, loads, stored = self._planner.costs(), dict[str, TenantLoad](), Counter[str]()
        for running in live:
            tenant = running.request.sharing.tenant
            load = loads.setdefault(tenant, TenantLoad(running.request.sharing.tenant_share))
            if running in prompts:
                stored[tenant] += prompts[running]
            else:
                rows = max(1, running.num_rows)
                load.rows, load.reading = load.rows + rows, load.reading + rows * costs.reading(running.drafts.pages)
        for tenant, rows in stored.items():
            loads[tenant].rows += min(rows, prompt_rows)
        return fair_rows(loads, costs.backbone.at, self._max_rows)

    def _serve(
        self, order: list[RunningRequest], chunks: Mapping[RunningRequest, int], limits: Mapping[str, int]
    ) -> tuple[StepRows, list[RunningRequest]]:
        budget, budgets = self._max_rows, dict(limits)
        served: StepRows = []
        left_out: list[RunningRequest] = []
        for running in order:
            chunk, tenant = chunks.get(running) if chunks else None, running.request.sharing.tenant if limits else ""
            row_limit = min(budget, max(0, budgets[tenant])) if limits else budget
            rows = running.next_rows(row_limit, chunk)
            if not rows and limits and budgets[tenant] == limits[tenant]:  # a tenant makes progress in every step
                rows = running.next_rows(budget, chunk)
            if rows:
                served.append((running, rows))
                budget -= len(rows)
                if limits:
                    budgets[tenant] -= len(rows)
            else:
                left_out.append(running)
        return served, left_out

    def _without_poor_drafts(self, served: StepRows) -> StepRows:
        offers = [running.expected_gains(rows) if len(rows) > 1 else () for running, rows in served]
        if not any(offers):
            return served
        certain = sum([len(rows) - len(gains) for (_, rows), gains in zip(served, offers, strict=True)])
        counts = self._planner.affordable_drafts(certain, offers)
        return [
            (running, rows[: len(rows) - len(gains) + count])
            for (running, rows), gains, count in zip(served, offers, counts, strict=True)
        ]

    def _in_order(self, free: list[RunningRequest], prompts: Collection[RunningRequest]) -> list[RunningRequest]:
        if not self._left_out and not prompts:
            return free
        present, left_out = set(free), set(self._left_out)
        first = [running for running in self._left_out if running in present]
        return first + sorted([running for running in free if running not in left_out], key=prompts.__contains__)

    def _chunks(
        self, order: list[RunningRequest], prompts: Mapping[RunningRequest, int], total: int
    ) -> dict[RunningRequest, int]:
        """The rows of each prompt in this step. `total`: their sum at most, divided between tenants first."""
        tenants = dict[str, dict[RunningRequest, int]]()
        for running in order:
            if running in prompts:
                tenants.setdefault(running.request.sharing.tenant, {})[running] = prompts[running]
        weights = [next(iter(counts)).request.sharing.tenant_share for counts in tenants.values()]
        totals = shares([sum(counts.values()) for counts in tenants.values()], total, weights)
        chunks = dict[RunningRequest, int]()
        for counts, rows in zip(tenants.values(), totals, strict=True):
            chunks.update(zip(counts, shares(list(counts.values()), rows), strict=True))
        return chunks

    def publish(self) -> None:
        """Shares the finished blocks whose rows have begun: forwards are computed in the order of their beginning."""
        for running in self.running:
            if running.blocks.written:
                self._publish(running)

    def _publish(self, running: RunningRequest) -> None:
        written = running.blocks.written
        while written:
            self._pages.publish(running.lease, written.popleft())

    def remove(self, running: RunningRequest) -> None:
        self.started.remove(running)
        if running.lease.pages:
            self.running.remove(running)
            self._tenants -= Counter([running.request.sharing.tenant])  # keeps no zero
        else:
            self.preempted.remove(running)
        self._publish(running)
        self._pages.release(running.lease)
        self.forecast.add(running.lease)
        self._refused = None
        if running.first_line:  # forwards that have begun are computed before a later request's
            self._lines.append(running.first_line)
        running.drafts.end()
        running.release()

    def drop_waiting(self, request_id: str) -> Waiting | None:
        waiting = next((waiting for waiting in self.waiting if waiting.request.request_id == request_id), None)
        if waiting is not None:
            self.waiting.remove(waiting)
        return waiting


def _running(admitted: Admitted) -> RunningRequest:
    if isinstance(admitted.request.mode, ScoreMode):
        return ScoringRequest(admitted)
    if verifies_in_one_row(admitted.request, admitted.model):
        return CausalRequest(admitted)
    return ShiftedRequest(admitted) if admitted.model.shifted else DiffusionRequest(admitted)


def pages_needed(request: GenerationRequest, block_size: int) -> int:
    """The maximum of KV pages of a request: its prompt and completion in whole blocks."""
    return -(-(len(request.prompt_token_ids) + request.max_new_tokens) // block_size)


@dataclass(slots=True)
class TenantLoad:
    """The rows that a tenant's requests could use in the next forward. `reading`: the time to read their pages."""

    weight: float
    rows: int = 0
    reading: float = 0.0


def fair_rows(loads: Mapping[str, TenantLoad], price: Callable[[int], float], max_rows: int) -> dict[str, int]:
    """The rows that each tenant may have in a forward of at most `max_rows` rows. Empty: all rows may be in it.

    `price`: a forward's time by its rows, without `reading`, in the same unit; more rows never take less.
    """
    rows, weights = [load.rows for load in loads.values()], [load.weight for load in loads.values()]
    reading = sum(load.reading for load in loads.values()) / sum(rows)
    longest = sum(weights) * min((price(load.rows) + load.reading) / load.weight for load in loads.values())
    total = bisect_right(range(1, max_rows + 1), longest, key=lambda count: price(count) + count * reading)
    if sum(rows) <= total:
        return {}
    return {tenant: max(1, share) for tenant, share in zip(loads, shares(rows, total, weights), strict=True)}


def shares(requested: Sequence[int], total: int, weights: Sequence[float] = ()) -> list[int]:
    """Divides a total by weights (none: equally), each share at most as large as requested.

    Each share is at least one. If the total is too small for that, the first shares are one and the others zero.
    """
    count = len(requested)
    if total < count:
        return [int(index < total) for index in range(count)]
    result, weights = [0] * count, weights or [1] * count
    order = sorted(range(count), key=lambda index: requested[index] / weights[index])
    sums = [*accumulate(weights[index] for index in reversed(order))]
    for remaining, index in zip(reversed(range(count)), order, strict=True):
        share = int(total * weights[index] / sums[remaining]) if remaining else total
        result[index] = min(requested[index], max(1, min(share, total - remaining)))  # one stays for each later share
        total -= result[index]
    return result
