"""Prices of rows, draft budgets of requests, and the number of their MRP forwards. No model."""

from dataclasses import replace

import pytest
from service.engine.drafting.estimates import MrpChoice

from service.decode.block import MASKED, Block, Pick, Step
from service.decode.mode import DecodingMode
from service.decode.modes import Dynamic, Speculative, Static
from service.decode.policy import Prediction, Refine
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.drafting.planner import DraftPlanner, RequestDrafts
from service.engine.lookahead import DraftsAhead
from tests.engine.helpers import CHEAP_ROWS, DEAR_ROWS, FREE_ROWS, request_of

AUTO = Speculative("auto")


def planned(planner: DraftPlanner, mode: DecodingMode = AUTO) -> RequestDrafts:
    return planner.plan_drafts(request_of("x", [1], mode), planner.mrp_steps(request_of("x", [1], mode), 2))


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


def test_the_rows_of_a_forward_are_shared() -> None:
    planner = DraftPlanner(lambda: FREE_ROWS, 32)
    drafts = planned(planner)
    shares = []
    for running in (1, 4, 10, 32):
        planner.begin(running)
        shares.append(drafts.budget().states)
    assert shares == [30, 6, 1, 0]


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
            planner.end([])
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
    before, chosen = strict.budget().row, planner.mrp_steps(request_of("x", [1], AUTO), 2)
    for _ in range(500):
        lax.record(9, verified([(0.3, 0)] * 8, 1))
    assert (strict.budget().row, planner.mrp_steps(request_of("x", [1], AUTO), 2)) == (before, chosen)
    assert planner.mrp_steps(request_of("x", [1], Speculative("auto", margin=0.5)), 2) != chosen


def test_a_request_with_fixed_drafts_needs_no_costs() -> None:
    def never() -> StepCosts:
        raise AssertionError("costs were measured")

    planner = DraftPlanner(never, 256)
    for mode in (Static(), Dynamic(0.5), Speculative(0, 4), Speculative(2)):
        drafts = planned(planner, mode)
        assert (drafts.mrp_steps, drafts.uses_mrp) == (getattr(mode, "mrp_steps", None), mode.needs_mrp)
        planner.begin(1)
        drafts.record(1, verified([], 1))
        planner.end([1])


def test_as_many_mrp_forwards_begin_ahead_as_followed_in_the_last_search() -> None:
    """Of three, only the first one leads to the next query: another has the other pick, and one another anchor."""
    planner = DraftPlanner(FREE_ROWS, 256)
    drafts, state = planned(planner), Block((MASKED, MASKED))
    ahead = DraftsAhead(Static().rule, drafts, 2)
    planner.begin(1)
    drafts.budget()
    drafts.record(1, [])
    read, other = [Prediction((0, 1), (5, 6), (0.9, 0.1), handle=handle) for handle in ("read", "other")]
    likeliest, unlikely = [state.reveal([pick]) for pick in read.picks]
    for query in (Refine(read, likeliest), Refine(read, unlikely), Refine(other, likeliest)):
        ahead.receive(read, state, query)
    drafts.record(1, [])
    assert ahead.num_ahead(Refine(read, state, num_following=3)) == 1


def searching(planner: DraftPlanner, net: float, steps: int, running: int = 8) -> list[bool]:
    """Whether each step searches. Every search finds one draft, which gains its row's price and `net` tokens.

    As in the engine, the next search begins before the drafts of the last one are counted.
    """
    requests, searches = [planned(planner) for _ in range(running)], [False]
    for _ in range(steps):
        planner.begin(running)
        searched, last = [drafts.budget().states > 0 for drafts in requests], searches[-1]
        assert all(searched) == any(searched)
        gain = planner.row() + net
        for drafts in requests:
            drafts.record(1 + last, verified([(0.9, gain)] if last else [], 1))  # type: ignore[list-item]
        searches.append(all(searched))
        planner.end([])
    return searches[1:]


class TestSearches:
    #: a search takes a tenth of a row, and a row costs about half a token
    COSTS = replace(CHEAP_ROWS, mrp=None, search=0.05)

    def test_searches_that_gain_more_than_they_cost_go_on(self) -> None:
        assert all(searching(DraftPlanner(lambda: self.COSTS, 256), 0.2, 200))

    def test_searches_that_only_pay_for_their_rows_are_tried_now_and_then(self) -> None:
        searches = searching(DraftPlanner(lambda: self.COSTS, 256), 0.0, 200)
        assert searches[0]
        assert sum(searches[100:164]) == 4

    def test_the_question_whether_drafts_follow_counts_as_no_search(self) -> None:
        planner = DraftPlanner(self.COSTS, 256)
        drafts = planned(planner)
        for _ in range(401):  # steps ahead of results: the policy makes no search
            planner.begin(1)
            assert drafts.drafts_next()
            drafts.record(1, verified([], 1), ahead=True)
            planner.end([])

    def test_searches_begin_again_where_they_pay_again(self) -> None:
        planner = DraftPlanner(lambda: self.COSTS, 256)
        searching(planner, -0.2, 200)
        assert all(searching(planner, 0.5, 400)[-20:])

    def test_each_load_has_its_own_count(self) -> None:
        planner = DraftPlanner(lambda: self.COSTS, 256)
        searching(planner, -0.2, 200)
        assert all(searching(planner, 0.2, 10, running=1))


class TestMrpChoice:
    def test_where_rows_are_free_mrp_drafts_and_where_they_are_dear_it_does_not(self) -> None:
        assert MrpChoice().best(FREE_ROWS, 1, 16) > 0
        assert MrpChoice().best(CHEAP_ROWS, 1, 16) == 0
        assert MrpChoice().best(DEAR_ROWS, 1, 16) == 0
        assert MrpChoice().best(StepCosts(FREE_ROWS.backbone), 1, 16) == 0

    def test_one_request_in_32_tries_a_neighbour_where_drafts_pay_at_all(self) -> None:
        for costs, wanted in ((FREE_ROWS, 4), (DEAR_ROWS, 0)):
            choice, taken = MrpChoice(), []
            for _ in range(128):
                taken.append(choice.best(costs, 1, 16))
                choice.take(taken[-1])
            assert sum(steps != taken[0] for steps in taken) == wanted

    def test_mrp_that_drafts_no_better_is_given_up_and_one_that_does_is_taken(self) -> None:
        choice = MrpChoice()
        assert choice.best(FREE_ROWS, 1, 16) == 2
        for _ in range(500):
            choice.take(2).count([(0.3, 1)] + [(0.3, 0)] * 7)
            choice.take(0).count([(0.3, 1)] * 2 + [(0.3, 0)] * 6)
        assert choice.best(FREE_ROWS, 1, 16) == 0
        for _ in range(500):
            choice.take(1).count([(0.3, 1)] * 4 + [(0.3, 0)] * 4)
        assert choice.best(FREE_ROWS, 1, 16) == 1

    def test_mrp_forwards_that_searches_do_not_take_cost_nothing(self) -> None:
        choice, costs = MrpChoice(), replace(FREE_ROWS, mrp=Curve(((1, 4.0), (256, 4.0))))
        assert choice.best(costs, 1, 16) == 0
        for _ in range(1000):
            choice.take(1).count_search(0)
        assert choice.best(costs, 1, 16) == 1
