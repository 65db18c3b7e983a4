"""KV pages that run short: who loses them, that everything ends, and that nothing else takes them meanwhile."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from service.decode.modes import Dynamic, Static
from service.engine import BlockEvent, Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.engine.page_forecast import PageForecast
from service.engine.prefix_cache import Lease
from service.engine.request import Sharing
from service.engine.request_stats import RequestStats
from service.engine.running_request import RunningRequest
from service.engine.scheduler import Scheduler
from service.model import Checkpoint
from tests.clock import Clock
from tests.engine.gated import GatedEngine
from tests.engine.helpers import SLOW_HOST, Recorder, audit, events_of
from tests.engine.test_scoring import pinned, read
from tests.tiny import GOLDEN_NAMES, golden

pytestmark = pytest.mark.undisturbed

#: an end token that no answer has, so that the forecast is wrong: answers are as long as their limits
NEVER = frozenset([10**9])

LONG = GenerationRequest("x", (1, 2, 3), Static(2), max_new_tokens=60, stop_token_ids=NEVER)


def long_requests(count: int, **changes: object) -> list[GenerationRequest]:
    return [
        replace(LONG, **({"request_id": str(n), "prompt_token_ids": (n + 1, 2, 3)} | changes))  # type: ignore[arg-type]
        for n in range(count)
    ]


def engine_of(checkpoint: Checkpoint, tokens: int = 160, recorder: Recorder | None = None, **more: object) -> Engine:
    """An engine that has seen short answers: it expects such of all requests, and starts too many."""
    config = EngineConfig(kv_cache_tokens=tokens, **({"max_rows": 64} | more))  # type: ignore[arg-type]
    engine = Engine(checkpoint, config, recorder, EngineDeps(costs=SLOW_HOST))
    expect_short_answers(engine)
    return engine


def expect_short_answers(engine: Engine) -> None:
    for _ in range(512):
        engine._scheduler.forecast.add(Lease([], limit=9, index=1))


def tokens_of(events: dict[str, list[BlockEvent]]) -> dict[str, tuple[int, ...]]:
    return {name: sum((event.token_ids for event in parts), ()) for name, parts in events.items()}


def ids(requests: list[RunningRequest]) -> list[str]:
    return [running.request.request_id for running in requests]


@pytest.fixture
def victims(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, list[str]]]]:
    """The requests that lost their pages, and those that ran then. No forward of theirs is under way."""
    seen: list[tuple[str, list[str]]] = []
    preempt = Scheduler.preempt

    def record(self: Scheduler, victim: RunningRequest) -> None:
        assert not victim._num_unread
        seen.append((victim.request.request_id, ids(self.running)))
        preempt(self, victim)

    monkeypatch.setattr(Scheduler, "preempt", record)
    return seen


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_requests_whose_answers_are_four_times_the_cache_all_end_with_their_answers(
    checkpoint: Checkpoint, victims: list[tuple[str, list[str]]], ahead: bool, prefix_cache: bool
) -> None:
    requests = long_requests(11)
    expected = tokens_of(events_of(Engine(checkpoint, EngineConfig(kv_cache_tokens=2048)), requests))
    recorder = Recorder()
    engine = engine_of(checkpoint, 160, recorder, async_scheduling=ahead, prefix_cache=prefix_cache)
    events = events_of(engine, requests)
    assert tokens_of(events) == expected
    assert engine.state().kv_pages_used == 0
    audit(engine._pages, [])
    assert len(victims) >= 5
    counted = [parts[-1].stats.num_preemptions for parts in events.values()]
    assert sum(counted) == sum(report.cache.preemptions for report in recorder.reports) == len(victims)
    assert max(counted) <= 5
    assert sum(report.cache.recomputed for report in recorder.reports) > 0
    assert max(report.state.num_running for report in recorder.reports) > 160 // 64  # more than reservation allows


def test_the_newest_loses_its_pages_and_never_the_oldest(
    checkpoint: Checkpoint, victims: list[tuple[str, list[str]]]
) -> None:
    events_of(engine_of(checkpoint), long_requests(8))
    assert victims
    assert all(victim == running[-1] != running[0] for victim, running in victims)


def test_the_lowest_priority_loses_its_pages_first(
    checkpoint: Checkpoint, victims: list[tuple[str, list[str]]]
) -> None:
    requests = [
        replace(request, sharing=Sharing(priority=[5, 9, 1, 9, 5][number]))
        for number, request in enumerate(long_requests(5))
    ]
    priority = {request.request_id: request.sharing.priority for request in requests}
    engine = engine_of(checkpoint)
    for request in requests:
        engine.submit(request)
        engine.start_queued()
    while engine.has_work:
        engine.step()
    assert len({priority[victim] for victim, _ in victims}) > 1
    for victim, running in victims:
        candidates = running[1:]
        assert priority[victim] == max(priority[name] for name in candidates)
        assert victim == [name for name in candidates if priority[name] == priority[victim]][-1]


def test_the_tenant_with_the_most_pages_for_its_share_loses_some(
    checkpoint: Checkpoint, victims: list[tuple[str, list[str]]]
) -> None:
    """The flood came first, but for one, and the others are newer."""
    flood = [replace(request, sharing=Sharing("flood")) for request in long_requests(3)]
    few = replace(LONG, request_id="few", prompt_token_ids=(40, 41), sharing=Sharing("few"))
    heavy = replace(LONG, request_id="heavy", prompt_token_ids=(50, 51), sharing=Sharing("heavy", tenant_share=0.1))
    engine = engine_of(checkpoint)
    for request in [*flood, few]:
        engine.submit(request)
        engine.start_queued()
    while engine.has_work:
        engine.step()
    assert next(victim for victim, running in victims if "few" in running) == "2"
    victims.clear()
    expect_short_answers(engine)
    for request in [*flood, few, heavy]:
        engine.submit(request)
        engine.start_queued()
    while engine.has_work:
        engine.step()
    assert victims[0][0] == "heavy"


def test_requests_that_score_keep_their_pages(victims: list[tuple[str, list[str]]]) -> None:
    """They take all pages at their start, also where others wait for theirs."""
    checkpoint = golden(GOLDEN_NAMES[0])
    rng, size = random.Random(3), checkpoint.config.block_size
    decoded = long_requests(3)
    scored = [read(f"scored {number}", pinned(rng, 20 * size, 60)) for number in range(4)]
    roomy = events_of(Engine(checkpoint, EngineConfig(kv_cache_tokens=4096)), [*decoded, *scored])
    engine = engine_of(checkpoint, 48 * size, max_rows=size + 2)
    together = events_of(engine, [decoded[0], *scored, *decoded[1:]])
    assert tokens_of(together) == tokens_of(roomy)
    for request in scored:
        [event] = together[request.request_id]
        assert len(event.position_logprobs) == 60
    assert not [victim for victim, _ in victims if victim.startswith("scored")]


def test_the_oldest_waits_where_only_requests_that_score_have_pages(
    monkeypatch: pytest.MonkeyPatch, victims: list[tuple[str, list[str]]]
) -> None:
    """It finishes a block in each step. They take several steps, and keep their pages."""
    grow, waiting, checkpoint = Scheduler._grow, list[str](), golden(GOLDEN_NAMES[0])

    def record(self: Scheduler, *, ahead: bool) -> list[RunningRequest]:
        short = grow(self, ahead=ahead)
        waiting.extend(ids(short))
        return short

    monkeypatch.setattr(Scheduler, "_grow", record)
    size = checkpoint.config.block_size
    engine = engine_of(checkpoint, 40 * size, max_rows=size + 2)
    engine.submit(replace(LONG, mode=Static(size), max_new_tokens=38 * size - 3))
    engine.step()
    while len(engine._scheduler.running[0].lease.pages) < 9:
        engine.step()
    engine.submit(read("scored", pinned(random.Random(3), 30 * size, 60)))
    ends = dict[str, BlockEvent]()
    while engine.has_work:
        ends |= {event.request_id: event for event in engine.step() if event.finish_reason}
    assert {name: event.error for name, event in ends.items()} == {"x": None, "scored": None}
    assert set(waiting) == {"x"}
    assert victims == []


class Expected(PageForecast):
    """All requests are expected to need so many pages together."""

    def __init__(self, num_pages: int) -> None:
        super().__init__()
        self._num_pages = num_pages

    def peak(self, leases: Sequence[Lease], num_used: int, num_new: int) -> int:
        return self._num_pages


def test_no_request_waits_for_pages_while_others_go_ahead(checkpoint: Checkpoint) -> None:
    """The results are read first, then it takes the pages of another one."""
    engine = engine_of(checkpoint, async_scheduling=True)
    fast, *slow = long_requests(9, mode=Static(1))
    for request in (replace(fast, mode=Static(4), max_new_tokens=150), *slow):
        engine.submit(request)
    waiting = Counter[tuple[str, int]]()
    while engine.has_work:
        engine.step()
        short = [entry for entry in engine._scheduler.running if len(entry.lease.pages) < entry.lease.wanted]
        waiting.update((entry.request.request_id, entry.lease.wanted) for entry in short)
    assert 0 < max(waiting.values()) <= 2


class TestOrder:
    def test_nothing_new_starts_while_a_preempted_request_waits(self, checkpoint: Checkpoint) -> None:
        engine = engine_of(checkpoint)
        requests = long_requests(9)
        for request in requests[:5]:
            engine.submit(request)
        while not engine._scheduler.preempted:
            engine.step()
        for request in requests[5:]:
            engine.submit(replace(request, sharing=Sharing(priority=0), max_new_tokens=4))
        started: list[str] = []
        while engine.has_work:
            preempted = ids(engine._scheduler.preempted)
            before = ids(engine._scheduler.started)
            engine.step()
            new = [name for name in ids(engine._scheduler.started) if name not in before]
            assert not (new and set(preempted) & set(ids(engine._scheduler.preempted)))
            started += new
        assert started

    def test_the_oldest_preempted_request_is_the_first_to_run_again(self, checkpoint: Checkpoint) -> None:
        engine = engine_of(checkpoint)
        for request in long_requests(8):
            engine.submit(request)
        resumed = 0
        while engine.has_work:
            before = ids(engine._scheduler.preempted)
            engine.step()
            after = ids(engine._scheduler.preempted)
            again = [name for name in before if name not in after]
            resumed += len(again)
            assert before[: len(again)] == again
            assert ids(engine._scheduler.running) == sorted(ids(engine._scheduler.running))
        assert resumed

    def test_it_runs_again_only_if_it_is_expected_to_fit_or_alone(self, checkpoint: Checkpoint) -> None:
        engine = preempting(checkpoint)
        engine._scheduler.forecast = Expected(engine._pages.capacity + 1)
        alone = 0
        while engine.has_work:
            before, preempted = ids(engine._scheduler.running), ids(engine._scheduler.preempted)
            engine.step()
            again = set(preempted) - set(ids(engine._scheduler.preempted))
            alone += len(again)
            assert not (again and before)
        assert alone

    def test_it_runs_again_only_once_another_request_has_ended(self, checkpoint: Checkpoint) -> None:
        """So two requests do not take each other's pages in turns."""
        engine = preempting(checkpoint)
        engine._scheduler.forecast = Expected(0)
        resumed, has_ended = 0, False
        while engine.has_work:
            before = ids(engine._scheduler.preempted)
            ended = any(event.finish_reason for event in engine.step())
            again = [name for name in before if name not in ids(engine._scheduler.preempted)]
            resumed += len(again)
            assert has_ended or not again
            has_ended = ended
        assert resumed

    def test_one_request_always_has_room(self, checkpoint: Checkpoint) -> None:
        """Each needs all pages, or nearly all."""
        engine = engine_of(checkpoint, 64)
        requests = long_requests(4, max_new_tokens=61)
        assert {len(tokens) for tokens in tokens_of(events_of(engine, requests)).values()} == {61}
        assert engine.state().kv_pages_total == 16


class TestLimits:
    def test_a_preempted_request_can_be_aborted(self, checkpoint: Checkpoint) -> None:
        engine = preempting(checkpoint)
        [name, *_] = ids(engine._scheduler.preempted)
        engine.abort(name)
        assert name not in ids(engine._scheduler.started)
        while engine.has_work:
            engine.step()
        assert engine.state().kv_pages_used == 0
        audit(engine._pages, [])

    def test_its_time_limit_counts_and_it_ends_with_its_tokens(self, checkpoint: Checkpoint) -> None:
        clock, recorder = Clock(), Recorder()
        engine = Engine(
            checkpoint,
            EngineConfig(kv_cache_tokens=160, max_rows=64),
            recorder,
            EngineDeps(clock=clock, costs=SLOW_HOST),
        )
        expect_short_answers(engine)
        for request in long_requests(8, timeout_s=9.0):
            engine.submit(request)
        events = list[BlockEvent]()
        while not engine._scheduler.preempted:
            events += engine.step()
        preempted = ids(engine._scheduler.preempted)
        clock.now += 10.0
        events += engine.step()
        assert not engine.has_work
        for name in preempted:
            course = [event for event in events if event.request_id == name]
            assert course[-1].finish_reason == "timeout"
            assert [event.index for event in course] == list(range(len(course)))
            assert sum(len(event.token_ids) for event in course) > 4

    def test_it_counts_as_waiting(self, checkpoint: Checkpoint) -> None:
        engine = preempting(checkpoint)
        scheduler, state = engine._scheduler, engine.state()
        assert state.num_running == len(scheduler.running)
        assert state.num_waiting == len(scheduler.preempted) + len(scheduler.waiting) >= 1
        assert not engine.is_idle

    def test_weights_wait_for_it(self, checkpoint: Checkpoint) -> None:
        engine = preempting(checkpoint)
        engine.queue_held = True
        with pytest.raises(AssertionError, match="while requests run"):
            engine.update_weights(lambda: None, 1)
        waiting = len(engine._scheduler.waiting)
        while not engine.is_idle:
            engine.step()
        assert len(engine._scheduler.waiting) == waiting
        engine.update_weights(lambda: None, 1)

    async def test_a_task_of_the_thread_waits_for_it_and_no_queued_request_starts(self, checkpoint: Checkpoint) -> None:
        engine, seen = preempting(checkpoint), list[tuple[list[str], int]]()
        engine.submit(replace(LONG, request_id="queued"))
        gated = GatedEngine(engine)

        def work() -> None:
            seen.append((ids(engine._scheduler.started), len(engine._scheduler.waiting)))

        try:
            task = asyncio.create_task(gated.thread.run(work, when_idle=True))
            await asyncio.sleep(0)
            gated.gate.set()
            await task
            assert seen == [([], 1)]
        finally:
            gated.close()

    def test_all_are_aborted_for_new_weights(self, checkpoint: Checkpoint) -> None:
        engine = preempting(checkpoint)
        started = ids(engine._scheduler.started)
        assert engine.abort_running() == started
        assert engine.is_idle

    def test_a_paused_engine_takes_no_pages(self, checkpoint: Checkpoint) -> None:
        engine = preempting(checkpoint)
        engine.pause()
        preempted = ids(engine._scheduler.preempted)
        for _ in range(3):
            engine.start_queued()
            engine.expire()
        assert ids(engine._scheduler.preempted) == preempted
        engine.resume()
        while engine.has_work:
            engine.step()


def preempting(checkpoint: Checkpoint) -> Engine:
    """An engine with requests that have lost their pages."""
    engine = engine_of(checkpoint)
    for request in long_requests(8):
        engine.submit(request)
    while not engine._scheduler.preempted:
        engine.step()
    return engine


def test_the_prompts_statistics_are_those_of_the_first_start(checkpoint: Checkpoint) -> None:
    alike = long_requests(8, prompt_token_ids=tuple(range(1, 30)))
    requests = [replace(request, sampling=SamplingParams(1.0, seed=n)) for n, request in enumerate(alike)]
    engine = engine_of(checkpoint, 160)
    events = events_of(engine, requests)
    last = [parts[-1].stats for parts in events.values()]
    assert max(stats.num_preemptions for stats in last) > 0
    for stats in last:
        assert stats.cached_tokens <= 28
        assert stats.prefill_s is None or stats.first_block_s is None or stats.prefill_s <= stats.first_block_s
    repeated = [stats for stats in last if stats.num_preemptions]
    assert any(stats.forwards.prefill > 1 for stats in repeated)


def test_tokens_that_were_the_requests_own_do_not_count_as_cached_ones() -> None:
    stats = RequestStats(LONG, 0.0, 4, None)
    stats.count_cached(4)
    stats.preempt(in_prompt=False)
    stats.count_cached(8)
    assert stats.cached_tokens == 8


@pytest.mark.parametrize("ahead", [False, True])
def test_blocks_that_are_in_the_prefix_cache_still_are_not_stored_again(checkpoint: Checkpoint, ahead: bool) -> None:
    recorder = Recorder()
    engine = engine_of(checkpoint, 2048, recorder, async_scheduling=ahead)
    [request] = long_requests(1)
    engine.submit(request)
    for _ in range(16):
        engine.step()
    while engine._steps:  # read it, and begin no other one
        engine._steps.popleft().finish(Counter())
    engine._scheduler.publish()
    [running] = engine._scheduler.running
    finished = len(running.blocks.history)
    engine._scheduler.preempt(running)
    assert engine.state().kv_pages_used == 0
    while engine.has_work:
        engine.step()
    assert finished >= 6
    assert sum(report.cache.preemptions for report in recorder.reports) == 1
    assert sum(report.cache.recomputed for report in recorder.reports) <= engine.model.block_size


def test_a_warning_comes_at_most_once_a_minute(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    clock, recorder = Clock(), Recorder()
    config = EngineConfig(kv_cache_tokens=160, max_rows=64)
    engine = Engine(checkpoint, config, recorder, EngineDeps(clock=clock, costs=SLOW_HOST))
    with caplog.at_level(logging.WARNING, "service.engine.preemption_log"):
        for minute in range(3):
            clock.now = 100.0 * minute
            expect_short_answers(engine)
            events_of(engine, long_requests(8))
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 3
    counted = sum(report.cache.preemptions for report in recorder.reports)
    assert counted > 3
    assert all("lost their pages" in warning for warning in warnings)


@pytest.mark.parametrize("seed", range(3))
def test_all_end_under_any_load(checkpoint: Checkpoint, seed: int) -> None:
    """Requests of all priorities and tenants, some aborted: the pages add up after each step."""
    rng = random.Random(seed)
    engine = engine_of(checkpoint, rng.choice([128, 160, 320]), async_scheduling=rng.random() < 0.5, max_rows=32)
    requests = [
        replace(
            LONG,
            request_id=str(number),
            prompt_token_ids=tuple(rng.choices(range(1, 6), k=rng.randint(1, 20))),
            mode=rng.choice([Static(), Static(3), Dynamic(0.4)]),
            sampling=SamplingParams(rng.choice([0.0, 1.0]), seed=number),
            max_new_tokens=rng.randint(1, 90),
            stop_token_ids=rng.choice([NEVER, frozenset(range(6))]),
            sharing=Sharing(rng.choice(["", "a", "b"]), rng.choice([1.0, 3.0]), rng.randint(0, 9)),
        )
        for number in range(40)
    ]
    waiting, ended = list(requests), 0
    steps = 0
    while waiting or engine.has_work:
        if waiting and rng.random() < 0.5:
            engine.submit(waiting.pop())
        ended += sum(event.finish_reason is not None for event in engine.step())
        if rng.random() < 0.02:
            name = rng.choice(requests).request_id
            ended += name in ids(engine._scheduler.started) or any(
                entry.request.request_id == name for entry in engine._scheduler.waiting
            )
            engine.abort(name)
        audit(engine._pages, [running.lease for running in engine._scheduler.started])
        assert len(engine._scheduler.started) <= engine.max_running
        steps += 1
        assert steps < 20_000
    assert ended == len(requests)
    assert engine.state().kv_pages_used == 0
