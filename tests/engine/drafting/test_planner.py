"""Prices of rows, draft budgets of requests, and the plans that run. No model."""

from collections import Counter
from dataclasses import replace
from math import log, log2

import pytest

from service.decode.block import Pick, Step
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Speculative, Static
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.drafting.planner import COPIED, DRAFTS, PLAIN, REFINED, DraftPlanner, RequestDrafts
from service.engine.request import GenerationRequest, MeasuredMode
from tests.engine.helpers import CHEAP_ROWS, DEAR_ROWS, FREE_ROWS, request_of
from tests.plans import use_plan

AUTO = Speculative("auto")


def planned(planner: DraftPlanner, mode: DecodingMode = AUTO) -> RequestDrafts:
    request = request_of("x", [1], mode)
    return planner.plan_drafts(request, uses_mrp=planner.starts_with_mrp(request))


def verified(gains: list[tuple[float, int]], tokens: int) -> list[Step]:
    return [Step("verify", tuple(Pick(p, 1, 0.5) for p in range(tokens)), gains=tuple(gains))]


def price(costs: StepCosts, running: int) -> float:
    planner = DraftPlanner(lambda: costs, 256)
    planner.begin(running)
    return planner.row()


def test_free_rows_cost_nothing_and_dear_ones_more_than_they_can_bring() -> None:
    assert price(FREE_ROWS, 1) == price(FREE_ROWS, 16) == 0
    assert price(DEAR_ROWS, 1) > 1
    assert price(DEAR_ROWS, 64) >= 1


def test_a_row_costs_its_time_at_the_present_rate() -> None:
    """One request: a row costs half a unit, and a token takes two units. Under full load a row costs one token."""
    assert price(CHEAP_ROWS, 1) == pytest.approx(0.5 / 2, rel=0.02)
    assert [price(CHEAP_ROWS, running) for running in (1, 4, 16, 64)] == sorted(
        price(CHEAP_ROWS, n) for n in (1, 4, 16, 64)
    )
    assert price(CHEAP_ROWS, 64) == pytest.approx(1, abs=0.06)


#: two rows cost little more than one, four much more than two, eight little more than four
DENTED = StepCosts(Curve(((1, 2.0), (2, 2.6), (4, 5.0), (8, 6.4), (16, 12.0))))
#: A token is worth two units of time. The second row costs three, the third and the fourth nothing.
FILLED = StepCosts(Curve(((1, 2.0), (8, 9.0)), sizes=(1, 4, 8)))


@pytest.mark.parametrize(
    ("costs", "rows", "gains", "counts"),
    [
        (FREE_ROWS, 2, [[0.5, 0.1, 0.01], [0.02]], [3, 1]),
        (DEAR_ROWS, 2, [[0.99, 0.9], [0.98]], [0, 0]),
        # rows that fill a graph up are free
        (FILLED, 1, [[0.7]], [0]),
        (FILLED, 1, [[0.7, 0.6, 0.4, 0.3]], [3]),
        # a token is worth two units of time: the second row costs .6, the third and the fourth 1.2 each, others .35
        (DENTED, 1, [[0.25]], [0]),
        (DENTED, 1, [[0.35, 0.5, 0.5]], [1]),
        (DENTED, 1, [[0.35, 0.5, 0.5, 0.4, 0.3, 0.3, 0.3]], [7]),
        # four requests: up to eight rows are cheap, and the drafts with the highest gains take them
        (DENTED, 4, [[0.9, 0.8, 0.1], [], [0.7, 0.2], [0.6, 0.5]], [2, 0, 1, 1]),
        # three requests: the fourth row is dear and the fifth to the eighth are not
        (DENTED, 3, [[0.8, 0.8], [0.8, 0.7], [0.8]], [2, 2, 1]),
        # a later state may promise more, since several ways lead to it; it is not read without those before it
        (DENTED, 4, [[0.3, 0.9], [0.5]], [2, 1]),
    ],
)
def test_affordable_drafts(costs: StepCosts, rows: int, gains: list[list[float]], counts: list[int]) -> None:
    planner = DraftPlanner(lambda: costs, 256)
    planner.begin(rows)
    assert planner.affordable_drafts(rows, gains) == counts


def test_a_row_behind_many_pages_costs_their_reading() -> None:
    """A hundredth of a unit a page: at 100 pages more than those of the table a row costs one unit more than half."""
    costs = replace(CHEAP_ROWS, page=0.01, prefix=16)
    planner = DraftPlanner(lambda: costs, 256)
    planner.begin(1)
    assert planner.row(116) == pytest.approx(price(CHEAP_ROWS, 1) * 3, rel=0.02)
    assert planner.row(16) == planner.row(0) == pytest.approx(price(CHEAP_ROWS, 1))


@pytest.mark.usefixtures("drafting")
def test_the_rows_of_a_forward_are_shared() -> None:
    planner = DraftPlanner(lambda: FREE_ROWS, 32)
    drafts = planned(planner)
    shares = []
    for running in (1, 4, 10, 32):
        planner.begin(running)
        shares.append(drafts.budget().states)
    assert shares == [30, 6, 1, 0]


@pytest.mark.usefixtures("drafting")
def test_the_device_makes_fewer_drafts_for_each_of_several_requests_and_none_where_rows_are_dear() -> None:
    """The last one has no room: 32 rows of 16 requests."""
    numbers = dict[str, list[int]]()
    for name, costs, max_rows in (("free", FREE_ROWS, 256), ("dear", DEAR_ROWS, 256), ("full", FREE_ROWS, 32)):
        numbers[name] = []
        for running in (1, 2, 3, 16):
            planner = DraftPlanner(costs, max_rows)
            planner.begin(running)
            numbers[name].append(len(planner.device_numbers(Static().rule)))
    assert numbers == {"free": [7, 7, 5, 5], "dear": [0, 0, 0, 0], "full": [7, 7, 5, 0]}


@pytest.mark.usefixtures("drafting")
def test_broken_promises_raise_the_bar_for_drafts_of_their_kind_alone() -> None:
    def bars(actual: int) -> tuple[float, float, float]:
        """The least gains of drafts of a kind before and after many gained `actual` tokens, and of another kind."""
        planner = DraftPlanner(lambda: CHEAP_ROWS, 256)
        drafts, other = planned(planner), planned(planner, Speculative("auto", threshold=0.5))
        planner.begin(1)
        before = drafts.budget().row
        for _ in range(304):
            planner.begin(1)
            drafts.record(2, verified([(0.25, actual)], 1))
            drafts.record(2, verified([(0.35, actual)], 1))
            planner.end()
        planner.begin(1)
        return before, drafts.budget().row, other.budget().row

    (before, broken, other), (_, unchanged, control) = bars(0), bars(1)
    assert broken > max(before, unchanged) + 0.1
    assert other == pytest.approx(control, rel=0.01)


def test_drafts_that_only_need_to_be_near_say_nothing_about_others() -> None:
    """With a margin more drafts are kept. Strict requests would otherwise verify too many."""
    planner = DraftPlanner(lambda: FREE_ROWS, 256)
    lax, strict = planned(planner, Speculative("auto", margin=0.5)), planned(planner)
    planner.begin(1)
    before, lax_before = strict.expected_gains([0.3] * 8), lax.expected_gains([0.3] * 8)
    for _ in range(500):
        lax.record(9, verified([(0.3, 0)] * 8, 1))
    assert strict.expected_gains([0.3] * 8) == before
    assert sum(lax.expected_gains([0.3] * 8)) < 0.1 * sum(lax_before)


def test_a_request_with_fixed_drafts_needs_no_costs() -> None:
    def never() -> StepCosts:
        raise AssertionError("costs were measured")

    planner = DraftPlanner(never, 256)
    for mode in (Static(), Dynamic(0.5), Speculative(0, 4), Speculative(2)):
        drafts = planned(planner, mode)
        assert (drafts.mrp_steps, drafts.uses_mrp) == (getattr(mode, "mrp_steps", None), mode.needs_mrp)
        planner.begin(1)
        drafts.record(1, verified([], 1))
        planner.end()


class TestPlans:
    def test_no_plan_but_the_one_without_drafts_lets_a_request_draft(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for plan, expected in ((PLAIN, (0, 0, 0)), (DRAFTS, (30, 0, 0)), (COPIED, (30, 0, 8)), (REFINED, (30, 2, 8))):
            use_plan(monkeypatch, plan)
            planner = DraftPlanner(FREE_ROWS, 32)
            drafts = planned(planner)
            planner.begin(1)
            budget = drafts.budget()
            assert (budget.states, budget.mrp_steps, budget.copied) == expected
            assert drafts.drafts_next() == (plan != PLAIN)
            assert drafts.refines == (plan == REFINED)

    def test_a_request_that_started_without_mrp_drafts_without_it_whatever_runs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_plan(monkeypatch, DRAFTS)
        planner = DraftPlanner(FREE_ROWS, 256)
        drafts = planned(planner)
        monkeypatch.setattr(DraftPlanner, "plan", REFINED)
        planner.begin(1)
        assert (drafts.budget().mrp_steps, drafts.refines, drafts.mrp_steps) == (0, False, 0)

    def test_where_there_is_no_mrp_no_request_starts_with_it(self) -> None:
        planner = DraftPlanner(StepCosts(FREE_ROWS.backbone), 256)
        assert not planner.starts_with_mrp(request_of("x", [1], AUTO))
        assert planner.starts_with_mrp(request_of("x", [1], Speculative(2)))

    def test_a_plan_is_expected_to_be_worth_what_the_table_says(self) -> None:
        """Free rows: a tree of four states gives .81 more steps, with MRP 1.16. A dear row loses them."""
        free, cheap, dear = (DraftPlanner(costs, 256) for costs in (FREE_ROWS, CHEAP_ROWS, DEAR_ROWS))
        assert free.expected_gain(DRAFTS, 1) == pytest.approx(log(1 + 0.35 * log2(5)))
        assert free.expected_gain(REFINED, 1) == pytest.approx(log(1 + 0.5 * log2(5)) - log(1.1))
        assert cheap.expected_gain(DRAFTS, 1) > 0 > cheap.expected_gain(REFINED, 1)
        assert dear.expected_gain(DRAFTS, 1) < 0
        assert cheap.expected_gain(DRAFTS, 64) < 0

    def test_tokens_and_seconds_of_decoding_requests_find_the_faster_plan(self) -> None:
        """Drafts bring a second token, and a step with them takes half as long again."""
        now, costs = 0.0, StepCosts(FREE_ROWS.backbone)
        planner = DraftPlanner(costs, 256, clock=lambda: now)
        drafts = [planned(planner) for _ in range(4)]
        for step in range(200):
            planner.begin(4)
            drafting = planner.plan != PLAIN
            for request in drafts:
                request.record(1 + drafting, verified([], 1 + drafting))
            now += 1.5 if drafting else 1.0
            planner.end()
            if step == 100:
                planner.idle(4)
                now += 1000.0
        assert planner.plan != PLAIN
        for request in drafts:
            request.end()

    def test_a_step_of_prompts_alone_counts_for_no_plan(self) -> None:
        now = 0.0
        planner = DraftPlanner(DEAR_ROWS, 256, clock=lambda: now)
        drafts = planned(planner)
        for step in range(60):
            planner.begin(1, prompt_rows=64 * (step % 2))
            if step % 2:
                now += 100.0
            else:
                drafts.record(1, verified([], 1))
                now += 1.0
            planner.end()
        assert planner.plan == PLAIN


class TestPresets:
    PLANS = (MeasuredMode(AUTO, 1.3), MeasuredMode(Dynamic(0.5), 1.5), MeasuredMode(Direct(2), 2.6))

    def test_requests_come_to_start_with_the_fastest_plan(self) -> None:
        """By the clock, not by tokens per forward: `direct` has the most, in steps that take three times as long."""
        now, costs = 0.0, StepCosts(FREE_ROWS.backbone, FREE_ROWS.mrp)
        planner = DraftPlanner(costs, 256, clock=lambda: now)
        work = {AUTO: (1, 1.0), Dynamic(0.5): (2, 1.2), Direct(2): (3, 3.0)}
        running, modes = list[tuple[RequestDrafts, DecodingMode, int]](), Counter[DecodingMode]()
        for step in range(600):
            while len(running) < 4:
                request = planner.with_plan(GenerationRequest("x", (1,), AUTO, plans=self.PLANS))
                drafts = planner.plan_drafts(request, uses_mrp=planner.starts_with_mrp(request))
                running.append((drafts, request.mode, step + 12 + len(running)))
            planner.begin(4)
            for drafts, mode, _ in running:
                drafts.record(1, verified([], work[mode][0]))
            modes.update(mode for _, mode, _ in running if step >= 200)
            now += 0.01 * max(work[mode][1] for _, mode, _ in running)
            planner.end()
            for drafts, _, end in running:
                if end <= step:
                    drafts.end()
            running = [started for started in running if started[2] > step]
        assert modes[Dynamic(0.5)] > 0.8 * modes.total()

    def test_tokens_per_forward_and_the_table_say_what_to_try_first(self) -> None:
        costs = StepCosts(Curve(((1, 10.0), (256, 10.0))), Curve(((1, 5.0), (256, 5.0))))
        planner = DraftPlanner(costs, 256)
        gains = [planner.expected_mode_gain(plan, 1) for plan in self.PLANS]
        assert gains == pytest.approx([log(1.3), log(1.5), log(1.3)])

    def test_a_request_with_one_mode_keeps_it(self) -> None:
        request = request_of("x", [1], Static())
        assert DraftPlanner(FREE_ROWS, 256).with_plan(request) is request
