"""Admission and row budgets."""

import random
from dataclasses import replace

import pytest

from service.decode.modes import Speculative, Static
from service.engine import Engine, EngineConfig
from service.engine.drafting.planner import DRAFTS, REFINED, DraftPlanner
from service.engine.prefix_cache import PrefixCache
from service.engine.request import Sharing
from service.engine.running_request import RunningRequest
from service.engine.scheduler import Scheduler, pages_needed
from service.errors import SettingsError
from service.model import Checkpoint, parse_config
from tests.engine.helpers import FREE_ROWS, Recorder, random_requests, request_of
from tests.plans import use_plan
from tests.tiny import tiny_config

MODEL = parse_config(tiny_config())


def scheduler(pages: int = 100, max_running: int = 8, max_rows: int = 8, prompt_rows: int = 2) -> Scheduler:
    config = EngineConfig(max_running=max_running, max_rows=max_rows)
    return Scheduler(PrefixCache(pages), MODEL, config, DraftPlanner(lambda: FREE_ROWS, max_rows), prompt_rows)


def queue(target: Scheduler, *requests) -> None:
    for request in requests:
        target.enqueue(request, 0.0)


def admit(target: Scheduler) -> list[RunningRequest]:
    admitted = target.start_queued()
    for running_request in admitted:
        running_request.start()
    return admitted


def served(target: Scheduler) -> list[str]:
    return [running_request.request.request_id for running_request, _ in target.plan()]


def running(target: Scheduler) -> list[str]:
    return [running_request.request.request_id for running_request in target.running]


class TestAdmission:
    @pytest.mark.parametrize(
        ("prompt", "tokens", "pages"), [(1, 1, 1), (4, 4, 2), (3, 2, 2), (4, 1, 2), (9, 7, 4), (1, 3, 1), (1, 4, 2)]
    )
    def test_pages_for_the_whole_request(self, prompt: int, tokens: int, pages: int) -> None:
        assert pages_needed(request_of("x", [1] * prompt, tokens=tokens), 4) == pages

    def test_in_order_of_arrival_even_if_a_later_one_would_fit(self) -> None:
        target = scheduler(pages=5)
        queue(target, *(request_of(name, [1] * 4, tokens=size) for name, size in [("a", 8), ("b", 12), ("c", 4)]))
        admit(target)
        assert running(target) == ["a"]
        target.remove(target.running[0])
        admit(target)
        assert running(target) == ["b", "c"]  # b takes its last page when c has ended

    def test_by_priority_age_and_tenant(self) -> None:
        target = scheduler(max_running=1)
        generation = request_of("a", [1])
        queue(
            target,
            replace(generation, request_id="flood-1", sharing=Sharing("flood")),
            replace(generation, request_id="flood-2", sharing=Sharing("flood")),
            replace(generation, request_id="late", sharing=Sharing("other")),
            replace(generation, request_id="urgent", sharing=Sharing("other", priority=0)),
            replace(generation, request_id="old", sharing=Sharing("other", priority=9), waited_s=1000.0),
        )
        order = []
        while target.waiting:
            (running_request,) = admit(target)
            order.append(running_request.request.request_id)
            target.remove(running_request)
        assert order == ["flood-1", "old", "flood-2", "urgent", "late"]

    def test_requests_have_mrp_pages_where_their_plan_or_mode_needs_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for plan in (DRAFTS, REFINED):
            use_plan(monkeypatch, plan)
            target = scheduler(max_running=8)
            queue(target, *(request_of(mode.name, [1], mode) for mode in (Speculative(), Speculative(2), Static())))
            assert [running.lease.prefix.mrp for running in admit(target)] == [plan == REFINED, True, False]


class TestRows:
    def test_requests_left_out_of_a_forward_are_first_in_the_next(self) -> None:
        target = scheduler(max_rows=6)
        queue(target, *(request_of(name, [1], Static(), tokens=4) for name in "abcdefgh"))
        admit(target)
        assert served(target) == ["a", "b", "c", "d", "e", "f"]
        assert served(target) == ["g", "h", "a", "b", "c", "d"]
        assert served(target) == ["e", "f", "a", "b", "c", "d"]

    def test_stored_blocks_go_first_and_an_evaluation_is_never_split(self) -> None:
        target = scheduler(max_rows=8)
        queue(target, request_of("a", [1] * 8, Static()))
        (running_request,) = admit(target)
        assert [row.writes_kv for row in running_request.next_rows(8)] == [True, True, False]
        assert [row.writes_kv for row in running_request.next_rows(2)] == [True, True]
        assert [row.writes_kv for row in running_request.next_rows(1)] == [True]
        assert running_request.next_rows(0) == []
        assert [row.writes_kv for row in running_request.next_rows(8, 1)] == [True]
        assert [row.writes_kv for row in running_request.next_rows(8, 2)] == [True, True, False]

    @pytest.mark.parametrize("max_rows", [6, 7, 11])
    def test_a_tiny_budget_gives_the_same_tokens_and_starves_nobody(
        self, checkpoint: Checkpoint, max_rows: int
    ) -> None:
        requests = random_requests(random.Random(5), checkpoint, 8)
        recorder = Recorder()
        wide = Engine(checkpoint, EngineConfig(max_rows=500)).generate(requests)
        narrow = Engine(checkpoint, EngineConfig(max_rows=max_rows), recorder).generate(requests)
        assert [done.token_ids for done in narrow] == [done.token_ids for done in wide]
        assert max(report.rows for report in recorder.reports) <= max_rows

    def test_less_is_refused(self, checkpoint: Checkpoint) -> None:
        with pytest.raises(SettingsError, match=r"max_rows is 5, at least 6 \(block size \+ 2\) are needed"):
            Engine(checkpoint, EngineConfig(max_rows=5))


@pytest.mark.undisturbed
class TestPages:
    def test_when_pages_are_short_requests_wait_and_all_get_done(self, checkpoint: Checkpoint) -> None:
        requests = random_requests(random.Random(6), checkpoint, 10, longest=16)
        roomy = Engine(checkpoint, EngineConfig(kv_cache_tokens=4096)).generate(requests)
        recorder = Recorder()
        tight = Engine(checkpoint, EngineConfig(kv_cache_tokens=32), recorder)
        assert [done.token_ids for done in tight.generate(requests)] == [done.token_ids for done in roomy]
        states = [report.state for report in recorder.reports]
        assert all(state.kv_pages_used <= state.kv_pages_total == 8 for state in states)
        assert any(state.num_waiting for state in states)
        assert tight.state().kv_pages_used == 0

    def test_usage_is_reported(self, checkpoint: Checkpoint) -> None:
        engine = Engine(checkpoint, EngineConfig(kv_cache_tokens=40))
        engine.submit(request_of("a", [1] * 8, tokens=12))
        engine.step()
        state = engine.state()
        assert (state.num_running, state.num_waiting, state.kv_pages_used, state.kv_pages_total) == (1, 0, 4, 10)
        assert state.kv_usage == 0.4
