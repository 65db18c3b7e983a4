"""The number of drafts to verify at the current load, by the price of a row in tokens: `mrp_steps: "auto"`.

The aim is the most tokens per second. Verifying a state that is passed with probability p gains p tokens. It is worth
its cost if p is larger than the number of tokens that the batch could decode in the time of one row (Dinkelbach's
method). Times come from the measured table (`costs.py`), so a slow machine makes the same choices.

`row` is the price by which a request's tree grows. `affordable_drafts` cuts the trees of a forward together, by the
table itself. If searches gain less than they cost, only one step in `_TRIAL` searches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter

from service.decode.block import Step
from service.decode.canvas import DraftBudget
from service.decode.drafts import worth_drafting
from service.decode.registry import leaves_drafts_open
from service.decode.rules import TopConfidence
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.drafting.estimates import REFINED_SHARE, MrpChoice, MrpOption, Reliability
from service.engine.request import GenerationRequest

#: weight of a step in the running means, and the number of steps after which prices follow them
_FRESH, _REFRESH = 1 / 16, 8
#: the steps per step that searches where searches cost more than they gain
_TRIAL = 16
#: The share of a row's price by which trees grow where graphs fill forwards up. Some rows are free then, and
#: `affordable_drafts` knows which.
_FILLED_SHARE = 0.5

#: the kind of a request's drafts, which decides their gains: (rule class, one token a state, random, margin)
_Kind = tuple[str, bool, bool, bool]


class DraftPlanner:
    """The prices of one engine. `costs`: the costs, or a function that measures them once they are needed."""

    def __init__(self, costs: StepCosts | Callable[[], StepCosts], max_rows: int, block_size: int = 8) -> None:
        self._max_rows, self._block_size = max_rows, block_size
        self._costs = costs
        #: running means: rows and tokens of a request in a step, MRP's time over the backbone's, pages that a row reads
        self._rows, self._tokens, self._mrp, self._pages = 1.0, 1.0, 0.0, 0.0
        self._ahead = 0.0  # and the share of requests whose next forward begins ahead
        self.work, self._steps = StepWork(), 0
        self._free_rows: dict[int, bool] = {}  # whether second rows are free, by running requests, until a step ends
        self._slopes: dict[int, tuple[float, float]] = {}
        self._onward: dict[int, Curve] = {}
        self._seconds: list[float] = []  # the time of a forward by its number of rows
        #: the budgets by MRP forwards, price of pages, running requests, and kind of drafts
        self._budgets: dict[tuple[int, float, int, Reliability], DraftBudget] = {}
        self._mrp_choices: dict[_Kind, MrpChoice] = {}
        self._reliabilities: dict[tuple[_Kind, int], Reliability] = {}

    def costs(self) -> StepCosts:
        if not isinstance(self._costs, StepCosts):
            self._costs = self._costs()
        return self._costs

    def mrp_steps(self, request: GenerationRequest, num_running: int) -> int | None:
        """The number of MRP forwards for the drafts of a new request. None if the engine does not choose it.

        `num_running`: the running requests once this one and all others that can start now have started.
        """
        if not leaves_drafts_open(request.mode):
            return None
        costs = self.costs().with_pages(self._pages)
        return self._mrp_choice(_kind(request)).best(costs, num_running, self._max_states(num_running))

    def plan_drafts(self, request: GenerationRequest, mrp_steps: int | None) -> RequestDrafts:
        """The drafts of a request that starts. `mrp_steps`: the result of the method `mrp_steps`."""
        mode = request.mode
        if mrp_steps is None:
            return RequestDrafts(self, mode.needs_mrp, getattr(mode, "mrp_steps", None))
        kind = _kind(request)
        reliability = self._reliabilities.setdefault((kind, mrp_steps), Reliability())
        return PlannedDrafts(self, request, self._mrp_choice(kind).take(mrp_steps), reliability)

    def _mrp_choice(self, kind: _Kind) -> MrpChoice:
        return self._mrp_choices.setdefault(kind, MrpChoice(self._block_size))

    def begin(self, num_running: int) -> None:
        self.work = StepWork(max(1, num_running))
        self._steps += 1

    def end(self, mrp_rows: Iterable[int]) -> None:
        step, self.work = self.work, StepWork(self.work.num_running)
        if not step.requests:
            return
        self._rows += _FRESH * (step.rows / step.requests - self._rows)
        self._tokens += _FRESH * (step.tokens / step.requests - self._tokens)
        self._free_rows.clear()
        self._pages += _FRESH * (step.pages / step.rows - self._pages)
        self._ahead += _FRESH * (step.ahead / step.requests - self._ahead)
        if isinstance(self._costs, StepCosts) and self._costs.mrp:
            spent = sum(self._costs.mrp.filled(rows) for rows in mrp_rows)
            self._mrp += _FRESH * (spent / self._costs.backbone.filled(step.rows) - self._mrp)
        if self._steps % _REFRESH == 0:
            self._slopes.clear()
            self._budgets.clear()

    def row(self, pages: int = 0) -> float:
        """The price, in tokens, of one more row that reads `pages` pages."""
        slope, rate = self._slope_and_rate()
        return (slope + self.costs().reading(pages)) * rate

    def affordable_drafts(self, rows: int, gains: Sequence[Sequence[float]]) -> list[int]:
        """The number of drafts of each request that the next forward reads beside `rows` other rows.

        `gains`: the expected gains of each request's drafts, in their order.
        """
        times, backbone, (_, rate) = self._seconds, self.costs().backbone, self._slope_and_rate()
        times.extend([backbone.filled(count) for count in range(len(times), rows + sum(map(len, gains)) + 1)])
        return worth_reading(gains, [rate * (seconds - times[rows]) for seconds in times[rows:]])

    def reading(self, pages: int) -> float:
        return self.costs().reading(pages) * self._slope_and_rate()[1]

    def _slope_and_rate(self) -> tuple[float, float]:
        count = self.work.num_running
        if count not in self._slopes:
            costs, rows = self.costs(), count * self._rows
            if count not in self._onward:
                self._onward[count] = costs.backbone.onward(count)
            slope = self._onward[count].slope(max(count, rows - count / 2), rows + count / 2) + costs.draft
            self._slopes[count] = slope, count * self._tokens / self.forward_time(count)
        return self._slopes[count]

    def forward_time(self, num_running: int) -> float:
        costs, rows = self.costs(), num_running * self._rows
        reading = rows * costs.reading(self._pages)
        return (costs.backbone.at(rows) - self._ahead * self._turn(num_running) + reading) * (1 + self._mrp)

    def rows_are_free(self) -> bool:
        """Whether a forward ahead of results takes less time with a second row for each request than one in turns.

        In turns a request also has a second row when it stores a block. No costs are measured for this alone.
        """
        if not isinstance(self._costs, StepCosts):
            return False
        count, backbone = self.work.num_running, self._costs.backbone
        if count not in self._free_rows:
            filled = round(count * (1 + min(1.0, self._tokens / self._block_size)))
            self._free_rows[count] = backbone.filled(2 * count) - self._turn(count) < backbone.filled(filled)
        return self._free_rows[count]

    def _turn(self, num_running: int) -> float:
        """The time that plain forwards of the running requests save when they begin ahead."""
        turn = self.costs().turn
        return turn.at(min(num_running, turn.points[-1][0])) if turn else 0.0

    def budget(self, mrp_steps: int, reliability: Reliability, pages: int) -> DraftBudget:
        """The current budget of a request, by the reliability of its kind of drafts and the pages of each state."""
        key = mrp_steps, self.costs().reading(pages), self.work.num_running, reliability
        if (budget := self._budgets.get(key)) is None or (not budget.states and self._steps % _TRIAL == 0):
            self._budgets[key] = budget = self._new_budget(mrp_steps, reliability, self.row(pages))
        return budget

    def _new_budget(self, mrp_steps: int, reliability: Reliability, price: float) -> DraftBudget:
        num_running = self.work.num_running
        max_states = self._max_states(num_running)
        if self._steps % _TRIAL and not reliability.searches.are_worth(num_running, self.search()):
            return DraftBudget()
        if price >= 1:
            return DraftBudget(price, max_states, mrp_steps)
        price *= _FILLED_SHARE if self.costs().backbone.sizes else 1.0
        refine = self.refinement() if mrp_steps else 0.0
        return DraftBudget(reliability.min_gain(price), max_states, mrp_steps, refine)

    def search(self) -> float:
        """The price, in tokens, of one request's search, whose forward cannot begin ahead."""
        count = self.work.num_running
        return (self.costs().search + self._turn(count) / count) * self._slope_and_rate()[1]

    def refinement(self) -> float:
        """The price, in tokens, of one request's part of an MRP forward, which about `REFINED_SHARE` of all share."""
        costs, count = self.costs(), self.work.num_running
        sharing = max(1.0, REFINED_SHARE * count)
        return costs.mrp.filled(count) / sharing * self._slope_and_rate()[1] if costs.mrp else 0.0

    def _max_states(self, num_running: int) -> int:
        """The limit of a request's drafts: its share of a forward's rows, less its current state and a block."""
        return max(0, self._max_rows // num_running - 2)


def _kind(request: GenerationRequest) -> _Kind:
    mode = request.mode
    rule = mode.rule if request.grammar is None else mode.rule.in_order
    return type(rule).__name__, rule == TopConfidence(1), request.sampling.temperature > 0, mode.drafts_decide


def worth_reading(gains: Sequence[Sequence[float]], prices: Sequence[float]) -> list[int]:
    """The number of drafts of each request with which the sum of gains exceeds the cost of their rows the most.

    `gains`: each request's expected gains, in their order. `prices[n]`: the cost of n further rows, in tokens.
    """
    drafts = list[tuple[float, float, int]]()
    for index, expected in enumerate(gains):
        lowest = inf
        for gain in expected:
            lowest = min(lowest, gain)  # a state comes right after an earlier state of less gain
            drafts.append((-lowest, gain, index))
    drafts.sort(key=itemgetter(0))
    total, best, best_count = 0.0, 0.0, 0
    for count, (_, gain, _) in enumerate(drafts, 1):
        total += gain
        if total - prices[count] > best:
            best, best_count = total - prices[count], count
    counts = Counter([index for _, _, index in drafts[:best_count]])
    return [counts[index] for index in range(len(gains))]


class RequestDrafts:
    """The drafts of one request. This class is for requests whose drafts the engine does not choose.

    `mrp_steps`: the MRP forwards, as requested or chosen; None for modes without. `pages`: the pages before the current
    block. `refinements`: the MRP forwards of the present search. `followed`: the number of them whose state was the one
    after the rule's picks in the forward before.
    """

    __slots__ = ("followed", "mrp_steps", "pages", "planner", "refinements", "uses_mrp")

    def __init__(self, planner: DraftPlanner, uses_mrp: bool, mrp_steps: int | None) -> None:
        self.planner = planner
        self.uses_mrp, self.mrp_steps, self.pages, self.refinements = uses_mrp, mrp_steps, 0, 0
        self.followed = 0

    def budget(self) -> DraftBudget:
        return DraftBudget()

    def drafts_next(self) -> bool:
        """Whether the next forward may read drafts."""
        return False

    def num_ahead(self, following: int) -> int:
        """The MRP forwards that begin before the last one is read. `following`: their most that can follow."""
        return following

    def expected_gains(self, gains: Sequence[float]) -> list[float]:
        """The expected gains of drafts, less the price of their pages. `gains`: the policy's expected gains."""
        return list(gains)

    def record(self, rows: int, steps: Sequence[Step], *, ahead: bool = False) -> None:
        """Counts a reading of `rows` states (0: MRP read one) and its steps.

        `ahead`: whether its next forward has begun.
        """
        work = self.planner.work
        for step in steps:
            work.tokens += len(step.revealed) - len(step.remasked)
        if rows:
            work.requests += 1
            work.ahead += ahead
            work.rows += rows
            work.pages += rows * self.pages


class PlannedDrafts(RequestDrafts):
    """The drafts of a request whose number the engine chooses."""

    def __init__(
        self, planner: DraftPlanner, request: GenerationRequest, option: MrpOption, reliability: Reliability
    ) -> None:
        super().__init__(planner, option.steps > 0, option.steps)
        self._rule, self._option, self._reliability = request.mode.rule, option, reliability
        self._last_search = self._next_search = False  # whether drafts are searched before and after a forward
        self._last_followed = option.steps

    def budget(self) -> DraftBudget:
        """The budget of a search that now begins."""
        budget = self._present_budget()
        self._next_search = budget.states > 0 and budget.row < 1
        return budget

    def num_ahead(self, following: int) -> int:
        """As many as followed in the last search."""
        return min(following, self._last_followed)

    def drafts_next(self) -> bool:
        return worth_drafting(self._rule, self._present_budget())

    def _present_budget(self) -> DraftBudget:
        return self.planner.budget(self._option.steps, self._reliability, self.pages)

    def expected_gains(self, gains: Sequence[float]) -> list[float]:
        price = self.planner.reading(self.pages)
        return [gain - price for gain in self._reliability.actual_gains(gains)]

    def record(self, rows: int, steps: Sequence[Step], *, ahead: bool = False) -> None:
        super().record(rows, steps, ahead=ahead)
        if rows and self._last_search:
            gained = sum([actual for step in steps for _, actual in step.gains])
            spent = (rows - 1) * self.planner.row(self.pages)
            spent += self.refinements * self.planner.refinement()
            self._reliability.searches.count(self.planner.work.num_running, gained - spent)
            self._option.count_search(self.refinements)
            self._last_followed = self.followed
        if rows:  # the next search has already begun
            self._last_search, self._next_search, self.refinements = self._next_search, False, 0
            self.followed = 0
        for step in steps:
            if step.gains:
                self._option.count(step.gains)
                self._reliability.count(step.gains)


@dataclass(slots=True)
class StepWork:
    """The work of a step: requests that the backbone read, their rows, tokens and pages."""

    num_running: int = 1
    requests: int = 0
    rows: int = 0
    tokens: int = 0
    pages: int = 0
    ahead: int = 0
