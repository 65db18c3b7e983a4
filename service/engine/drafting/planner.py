"""The drafts of requests with `mrp_steps: "auto"`: which plan runs, and which drafts are worth their price.

Which plan runs is the clock's affair (`plan_clock.py`): no drafts; drafts of the backbone's predictions; drafts that
the request's text completes; or drafts that text and MRP complete. All such requests of a step have one plan, since one
that waits for results makes all wait. Where steps begin ahead, the device makes the drafts of the backbone's
predictions (`lookahead.py`), so nothing waits for them.

Which drafts a forward reads is a matter of prices. Verifying a state that is passed with probability p gains p tokens.
It is worth its cost if p is larger than the number of tokens that the batch could decode in the time of one row
(Dinkelbach's method). Times come from the measured table (`costs.py`), so a slow machine makes the same choices. `row`
is the price by which a request's tree grows. `affordable_drafts` cuts the trees of a forward together, by the table
itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, log, log2
from operator import itemgetter

from service.decode.block import Step
from service.decode.canvas import DraftBudget
from service.decode.drafts import numbers_by_rule, worth_drafting
from service.decode.registry import leaves_drafts_open
from service.decode.rules import Rule, TopConfidence
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.drafting.plan_clock import PlanChoice, PlanClock
from service.engine.drafting.reliability import Reliability
from service.engine.request import GenerationRequest, MeasuredMode

#: the plans of requests with `auto`, by number
PLAIN, DRAFTS, COPIED, REFINED = range(4)
#: the MRP forwards for a refined tree of drafts
_MRP_STEPS = 2
#: weight of a step in the running means, and the number of steps after which prices follow them
_FRESH, _REFRESH = 1 / 16, 8
#: The share of a row's price by which trees grow where graphs fill forwards up. Some rows are free then, and
#: `affordable_drafts` knows which.
_FILLED_SHARE = 0.5
#: the share of requests that an MRP forward refines
_REFINED_SHARE = 0.6
#: The expected gain of a plan before its first trial, measured on the demo (dev/lab/performance-log.md). A tree gives
#: _GAIN * log2(1 + states) more steps per forward. With MRP in blocks of 8 the factor `_REFINED_GAIN` comes on top. In
#: smaller blocks and in trees of fewer states than `_SMALL` MRP gains less.
_GAIN, _REFINED_GAIN, _SMALL, _SIZES = 0.45, 1.35, 4, (1, 2, 4, 8, 16)

#: how often the device's drafts are passed, by their number, before any is read; and the weight of one
_PASSED, _PASSED_WEIGHT = {1: 0.41, 2: 0.1, 3: 0.17, 5: 0.08, 7: 0.09}, 1 / 128

#: the kind of a request's drafts, which decides their gains: (rule class, one token a state, random, margin)
_Kind = tuple[str, bool, bool, bool]


class DraftPlanner:
    """The plan and the prices of one engine. `costs`: the costs, or a function that measures them once needed.

    `clock`: the engine's, in seconds.
    """

    def __init__(
        self,
        costs: StepCosts | Callable[[], StepCosts],
        max_rows: int,
        block_size: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_rows, self._block_size = max_rows, block_size
        self._costs, self._clock = costs, PlanClock(clock)
        self._choice: PlanChoice | None = None  # of requests with `auto`, from the first one on
        self._presets: dict[tuple[MeasuredMode, ...], PlanChoice] = {}  # of requests with several plans
        #: running means: rows and tokens of a request in a step, MRP's time over the backbone's, pages that a row reads
        self._rows, self._tokens, self._mrp, self._pages = 1.0, 1.0, 0.0, 0.0
        self.work, self._steps = StepWork(), 0
        self._passed = dict(_PASSED)
        self._device_numbers: dict[tuple[Rule, int], tuple[int, ...]] = {}  # by running requests, too
        self._free_rows: dict[int, bool] = {}  # whether second rows are free, by running requests, until a step ends
        self._slopes: dict[int, tuple[float, float]] = {}
        self._onward: dict[int, Curve] = {}
        self._seconds: list[float] = []  # the time of a forward by its number of rows
        #: the budgets by plan, MRP forwards, price of pages, running requests, and kind of drafts
        self._budgets: dict[tuple[int, int, float, int, Reliability], DraftBudget] = {}
        self._reliabilities: dict[tuple[_Kind, bool], Reliability] = {}

    def costs(self) -> StepCosts:
        if not isinstance(self._costs, StepCosts):
            self._costs = self._costs()
        return self._costs

    @property
    def plan(self) -> int:
        """The plan of requests with `auto`."""
        return PLAIN if self._choice is None else self._choice.plan

    def with_plan(self, request: GenerationRequest) -> GenerationRequest:
        """A request that starts now, with the mode of its `plans` that is the fastest or is to be tried."""
        if not request.plans:
            return request
        return replace(request, mode=request.plans[self._preset(request.plans).starting].mode)

    def _preset(self, plans: tuple[MeasuredMode, ...]) -> PlanChoice:
        if plans not in self._presets:
            gain = self.expected_mode_gain
            choice = PlanChoice(len(plans), lambda plan, count: gain(plans[plan], count), range(len(plans)))
            self._presets[plans] = self._clock.add(choice)
        return self._presets[plans]

    def expected_mode_gain(self, plan: MeasuredMode, num_running: int) -> float:
        """The expected log of a mode's tokens a second over `static`'s, by the table."""
        mode, costs = plan.mode, self.costs()
        if leaves_drafts_open(mode) or not mode.needs_mrp or costs.mrp is None:
            return log(plan.tokens_per_forward)
        refining = (getattr(mode, "mrp_steps", None) or 1) * costs.mrp.filled(num_running)
        plain = max(1e-9, costs.backbone.filled(num_running))
        return log(plan.tokens_per_forward * plain / (plain + refining))

    def starts_with_mrp(self, request: GenerationRequest) -> bool:
        """Whether a request that starts now needs MRP's part of its pages."""
        if not leaves_drafts_open(request.mode):
            return request.mode.needs_mrp
        if self._choice is None:
            plans = REFINED if self.costs().mrp is None else REFINED + 1
            self._choice = self._clock.add(PlanChoice(plans, self.expected_gain, {REFINED}))
        return self._choice.starting == REFINED

    def plan_drafts(self, request: GenerationRequest, *, uses_mrp: bool) -> RequestDrafts:
        """The drafts of a request that starts, after `with_plan`. `uses_mrp`: the result of `starts_with_mrp`."""
        mode, choice = request.mode, self._choice
        if choice is None or not leaves_drafts_open(mode):
            drafts = RequestDrafts(self, uses_mrp, getattr(mode, "mrp_steps", None))
        else:
            kind, table = _kind(request), self._reliabilities
            plain, refined = [table.setdefault((kind, refines), Reliability()) for refines in (False, True)]
            drafts = PlannedDrafts(self, request, (plain, refined if uses_mrp else plain), uses_mrp=uses_mrp)
            drafts.start(choice)
        if request.plans:
            drafts.start(self._preset(request.plans))
        return drafts

    def expected_gain(self, plan: int, num_running: int) -> float:
        """The expected log of a plan's tokens a second over those without drafts, by the table."""
        costs, times = self.costs(), list[float]()
        if plan == DRAFTS and costs.turn is not None:
            numbers = self._best_device_numbers(TopConfidence(1), num_running)
            return log(self._rate_by_device(num_running, numbers) / self._rate_by_device(num_running, ()))
        refines = plan == REFINED and costs.mrp is not None
        refining = _MRP_STEPS * costs.mrp.filled(num_running) if refines and costs.mrp else 0.0
        factor = 1.0 + (_REFINED_GAIN - 1.0) * max(0.0, log2(self._block_size) - 1.0) / 2.0 if refines else 1.0
        for states in [states for states in _SIZES if states <= self._max_states(num_running)]:
            size = log2(1 + states)
            steps = 1.0 + _GAIN * size * (1.0 + (factor - 1.0) * min(1.0, size / log2(1 + _SMALL)))
            seconds = costs.backbone.filled(num_running * (1 + states)) + num_running * states * costs.draft + refining
            times.append(seconds / steps)
        plain = costs.backbone.filled(num_running) - self._turn(num_running)
        return log(max(plain, 1e-9) / max(min(times, default=plain), 1e-9))

    def device_numbers(self, rule: Rule) -> tuple[int, ...]:
        """The numbers of the drafts that the device makes and reads for each request, by the table."""
        key = rule, self.work.num_running
        if key not in self._device_numbers:
            self._device_numbers[key] = self._best_device_numbers(*key)
        return self._device_numbers[key]

    def _best_device_numbers(self, rule: Rule, num_running: int) -> tuple[int, ...]:
        choices = numbers_by_rule(rule)[: 1 + self._max_states(num_running)]
        return max(choices, key=partial(self._rate_by_device, num_running))

    def _rate_by_device(self, num_running: int, numbers: Sequence[int]) -> float:
        """Tokens of a request by the time of a forward, in which some blocks are complete and the next ones begin."""
        rows = num_running * (1 + len(numbers)) * (1 + 1 / self._block_size)
        passed = sum([self._passed[number] for number in numbers])
        return (1 + passed) / max(1e-9, self.costs().backbone.filled(round(rows)))

    def count_passed(self, numbers: Sequence[int], step: Step) -> None:
        """Counts the drafts of the device that were read, and those that were passed."""
        for number, (_, passed) in zip(numbers, step.gains, strict=True):
            self._passed[number] += _PASSED_WEIGHT * ((passed > 0) - self._passed[number])

    def idle(self, expected: int) -> None:
        """No request runs. `expected`: the requests that start now."""
        self._clock.idle(expected)

    def begin(self, num_running: int, prompt_rows: int = 0) -> None:
        """A step of the running requests begins. `prompt_rows`: its rows of prompts."""
        self.work = StepWork(max(1, num_running), prompt_rows)
        self._steps += 1

    def end(self, mrp_rows: Iterable[int]) -> None:
        step, self.work = self.work, StepWork(self.work.num_running)
        if not step.requests:
            self._clock.idle()  # it has rows of prompts alone
            return
        if self._clock.choices:
            self._clock.end(step.num_running, step.requests, step.tokens, self._prompt_seconds(step))
        self._rows += _FRESH * (step.rows / step.requests - self._rows)
        self._tokens += _FRESH * (step.tokens / step.requests - self._tokens)
        self._free_rows.clear()
        self._pages += _FRESH * (step.pages / step.rows - self._pages)
        if isinstance(self._costs, StepCosts) and self._costs.mrp:
            spent = sum(self._costs.mrp.filled(rows) for rows in mrp_rows)
            self._mrp += _FRESH * (spent / self._costs.backbone.filled(step.rows) - self._mrp)
        if self._steps % _REFRESH == 0:
            self._slopes.clear()
            self._budgets.clear()
            self._device_numbers.clear()

    def _prompt_seconds(self, step: StepWork) -> float:
        """The time by which rows of prompts make a step without drafts longer."""
        if not step.prompt_rows:
            return 0.0
        backbone = self.costs().backbone
        return backbone.filled(step.requests + step.prompt_rows) - backbone.filled(step.requests)

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
        return (costs.backbone.at(rows) + reading) * (1 + self._mrp)

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
        key = self.plan, mrp_steps, self.costs().reading(pages), self.work.num_running, reliability
        if (budget := self._budgets.get(key)) is None:
            self._budgets[key] = budget = self._new_budget(mrp_steps, reliability, self.row(pages))
        return budget

    def _new_budget(self, mrp_steps: int, reliability: Reliability, price: float) -> DraftBudget:
        max_states = self._max_states(self.work.num_running)
        copied = self._block_size if self.plan in {COPIED, REFINED} else 0
        if price >= 1:
            return DraftBudget(price, max_states, mrp_steps, copied=copied)
        price *= _FILLED_SHARE if self.costs().backbone.sizes else 1.0
        refine = self.refinement() if mrp_steps else 0.0
        return DraftBudget(reliability.min_gain(price), max_states, mrp_steps, refine, copied=copied)

    def refinement(self) -> float:
        """The price, in tokens, of one request's part of an MRP forward, which `_REFINED_SHARE` of all share."""
        costs, count = self.costs(), self.work.num_running
        sharing = max(1.0, _REFINED_SHARE * count)
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
    after the rule's picks in the forward before. `by_device`: whether the device can draft, as its rows begin ahead.
    """

    __slots__ = ("_started", "by_device", "followed", "mrp_steps", "pages", "planner", "refinements", "uses_mrp")

    def __init__(self, planner: DraftPlanner, uses_mrp: bool, mrp_steps: int | None) -> None:
        self.planner = planner
        self.uses_mrp, self.mrp_steps, self.pages, self.refinements = uses_mrp, mrp_steps, 0, 0
        self.followed, self.by_device = 0, False
        self._started = list[tuple[PlanChoice, int]]()  # the plans with which the request started

    def start(self, choice: PlanChoice) -> None:
        """The request starts with the plan that requests start with now."""
        choice.started[choice.starting] += 1
        self._started.append((choice, choice.starting))

    def end(self) -> None:
        """The request is over."""
        for choice, plan in self._started:
            choice.started[plan] -= 1

    @property
    def refines(self) -> bool:
        """Whether MRP may be asked once the next forward is read."""
        return self.uses_mrp

    def budget(self) -> DraftBudget:
        return DraftBudget()

    def drafts_next(self) -> bool:
        """Whether the next forward may read drafts that the policy makes."""
        return False

    def device_numbers(self) -> tuple[int, ...]:
        """The numbers of the drafts that the device makes and reads in a forward (`decode/drafts.py`)."""
        return ()

    def count_passed(self, numbers: Sequence[int], step: Step) -> None:
        """A step has read drafts of the device."""

    def num_ahead(self, following: int) -> int:
        """The MRP forwards that begin before the last one is read. `following`: their most that can follow."""
        return following

    def expected_gains(self, gains: Sequence[float]) -> list[float]:
        """The expected gains of drafts, less the price of their pages. `gains`: the policy's expected gains."""
        return list(gains)

    def record(self, rows: int, steps: Sequence[Step]) -> None:
        """Counts a reading of `rows` states (0: MRP read one) and its steps."""
        work = self.planner.work
        for step in steps:
            work.tokens += len(step.revealed) - len(step.remasked)
        if rows:
            work.requests += 1
            work.rows += rows
            work.pages += rows * self.pages


class PlannedDrafts(RequestDrafts):
    """The drafts of a request with `auto`. `reliabilities`: without and with MRP."""

    __slots__ = ("_last_followed", "_max_drafts", "_reliabilities", "_rule")

    def __init__(
        self,
        planner: DraftPlanner,
        request: GenerationRequest,
        reliabilities: tuple[Reliability, Reliability],
        *,
        uses_mrp: bool,
    ) -> None:
        super().__init__(planner, uses_mrp, _MRP_STEPS if uses_mrp else 0)
        self._rule, self._reliabilities = request.mode.rule, reliabilities
        self._last_followed = _MRP_STEPS
        max_drafts: int | None = getattr(request.mode, "max_drafts", None)
        self._max_drafts = max_drafts

    @property
    def refines(self) -> bool:
        return self.uses_mrp and self.planner.plan == REFINED

    def budget(self) -> DraftBudget:
        if self.planner.plan == PLAIN or self._drafts_by_device:
            return DraftBudget()
        refines = self.refines
        return self.planner.budget(_MRP_STEPS if refines else 0, self._reliabilities[refines], self.pages)

    def num_ahead(self, following: int) -> int:
        """As many as followed in the last search."""
        return min(following, self._last_followed)

    @property
    def _drafts_by_device(self) -> bool:
        return self.by_device and self.planner.plan == DRAFTS

    def device_numbers(self) -> tuple[int, ...]:
        return self.planner.device_numbers(self._rule)[: self._max_drafts] if self._drafts_by_device else ()

    def count_passed(self, numbers: Sequence[int], step: Step) -> None:
        self.planner.count_passed(numbers, step)

    def drafts_next(self) -> bool:
        return self.planner.plan != PLAIN and worth_drafting(self._rule, self.budget())

    def expected_gains(self, gains: Sequence[float]) -> list[float]:
        price = self.planner.reading(self.pages)
        return [gain - price for gain in self._reliabilities[self.refines].actual_gains(gains)]

    def record(self, rows: int, steps: Sequence[Step]) -> None:
        super().record(rows, steps)
        if rows:  # the next search has already begun
            if self.refinements:
                self._last_followed = self.followed
            self.refinements = self.followed = 0
        for step in steps:
            if step.gains and not self._drafts_by_device:
                self._reliabilities[self.refines].count(step.gains)


@dataclass(slots=True)
class StepWork:
    """The work of a step: its requests, and those that the backbone read, with their rows, tokens and pages."""

    num_running: int = 1
    prompt_rows: int = 0
    requests: int = 0
    rows: int = 0
    tokens: int = 0
    pages: int = 0
