"""The drafts of requests with `mrp_steps: "auto"`: which plan runs, and which drafts are worth their price.

Which plan runs is the clock's affair (`plan_clock.py`): no drafts; drafts of the backbone's predictions; drafts that
the request's text completes; or drafts that text and MRP complete. All such requests of a step have one plan, since one
that waits for results makes all wait. Where steps begin ahead, the device makes the drafts of the backbone's
predictions (`lookahead.py`), so nothing waits for them.

Which drafts a forward reads is a matter of prices. Verifying a state that is passed with probability p gains p tokens.
It is worth its cost if p is larger than the number of tokens that the batch decodes without drafts in the time of one
row. Times come from the measured table (`costs.py`), so a slow machine makes the same choices. `row` is the price by
which a request's tree grows. `affordable_drafts` cuts the trees of a forward together, by the table itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, log, log2
from operator import itemgetter

from service.decode.block import Step
from service.decode.canvas import DraftBudget
from service.decode.drafts import numbers_by_rule, worth_drafting
from service.decode.registry import leaves_drafts_open
from service.decode.rules import Rule, TopConfidence
from service.engine.drafting.costs import StepCosts
from service.engine.drafting.plan_clock import PlanChoice, PlanClock
from service.engine.drafting.reliability import Reliability
from service.engine.request import GenerationRequest, MeasuredMode

#: the plans of requests with `auto`, by number
PLAIN, DRAFTS, COPIED, REFINED = range(4)
#: the MRP forwards for a refined tree of drafts
_MRP_STEPS = 2
#: the number of steps after which budgets follow the drafts that were passed
_REFRESH = 8
#: The steps that a plan's forward is expected to gain before the first trial, by log2(1 + states) of a tree of one of
#: these sizes. Chosen in the simulated worlds (dev/lab/performance-log.md, "A smaller planner").
_GAINS, _SIZES = {DRAFTS: 0.35, COPIED: 0.35, REFINED: 0.5}, (1, 4)
#: the most drafts of the device for each of more than this many requests: the table does not see the host's policies
_MAX_DRAFTS, _FEW = 5, 2
#: how often the device's drafts are passed, by their number, measured on the demo
_PASSED = {1: 0.41, 2: 0.1, 3: 0.17, 4: 0.05, 5: 0.08, 6: 0.03, 7: 0.09}

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
        self.work, self._steps = StepWork(), 0
        self._device_numbers: dict[tuple[Rule, int], tuple[int, ...]] = {}  # by running requests, too
        self._free_rows: dict[int, bool] = {}  # whether second rows are free, by running requests
        self._prices: dict[int, tuple[float, float]] = {}  # by running requests
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
        refining = plan.mode.needs_mrp and not leaves_drafts_open(plan.mode)
        mrp_steps = (getattr(plan.mode, "mrp_steps", None) or 1) if refining else 0
        return log(plan.tokens_per_forward) - self._log_time(num_running, mrp_steps=mrp_steps)

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
        mrp_steps = _MRP_STEPS if plan == REFINED else 0
        waits = self._turn(num_running) if plan != DRAFTS else 0.0
        return max(
            [
                log(1.0 + _GAINS[plan] * log2(1 + states)) - self._log_time(num_running, states, mrp_steps, waits)
                for states in _SIZES
                if states <= self._max_states(num_running)
            ],
            default=0.0,
        )

    def _log_time(self, num_running: int, states: int = 0, mrp_steps: int = 0, waits: float = 0.0) -> float:
        """The log of the time of a step in which each request reads `states` drafts, relative to a plain step.

        The plain step takes `waits` less.
        """
        costs = self.costs()
        refining = mrp_steps * costs.mrp.filled(num_running) if costs.mrp else 0.0
        plain = costs.backbone.filled(num_running) - waits
        seconds = costs.backbone.filled(num_running * (1 + states)) + num_running * states * costs.draft + refining
        return log(max(1e-9, seconds) / max(1e-9, plain))

    def device_numbers(self, rule: Rule) -> tuple[int, ...]:
        """The numbers of the drafts that the device makes and reads for each request, by the table."""
        key = rule, self.work.num_running
        if key not in self._device_numbers:
            count = self.work.num_running
            most = self._max_states(count)
            choices = numbers_by_rule(rule)[: 1 + (most if count <= _FEW else min(most, _MAX_DRAFTS))]
            self._device_numbers[key] = max(choices, key=self._rate_by_device)
        return self._device_numbers[key]

    def _rate_by_device(self, numbers: Sequence[int]) -> float:
        """Tokens of a request by the time of a forward."""
        seconds = self.costs().backbone.filled(self.work.num_running * (1 + len(numbers)))
        return (1 + sum([_PASSED[number] for number in numbers])) / max(1e-9, seconds)

    def idle(self, expected: int) -> None:
        """No request runs. `expected`: the requests that start now."""
        self._clock.idle(expected)

    def begin(self, num_running: int, prompt_rows: int = 0) -> None:
        """A step of the running requests begins. `prompt_rows`: its rows of prompts."""
        self.work = StepWork(max(1, num_running), prompt_rows)
        self._steps += 1

    def end(self) -> None:
        step, self.work = self.work, StepWork(self.work.num_running)
        if not step.requests:
            self._clock.idle()  # it has rows of prompts alone
            return
        if self._clock.choices:
            plain_s = self.costs().backbone.filled(step.requests)
            self._clock.end(step.num_running, step.requests, step.tokens, self._prompt_seconds(step), plain_s)
        if self._steps % _REFRESH == 0:
            self._budgets.clear()

    def _prompt_seconds(self, step: StepWork) -> float:
        """The time by which rows of prompts make a step without drafts longer."""
        if not step.prompt_rows:
            return 0.0
        backbone = self.costs().backbone
        return backbone.filled(step.requests + step.prompt_rows) - backbone.filled(step.requests)

    def row(self, pages: int = 0) -> float:
        """The price, in tokens, of one more row that reads `pages` pages."""
        seconds, rate = self._row_and_rate()
        return (seconds + self.costs().reading(pages)) * rate

    def affordable_drafts(self, rows: int, gains: Sequence[Sequence[float]]) -> list[int]:
        """The number of drafts of each request that the next forward reads beside `rows` other rows.

        `gains`: the expected gains of each request's drafts, in their order.
        """
        times, backbone, (_, rate) = self._seconds, self.costs().backbone, self._row_and_rate()
        times.extend([backbone.filled(count) for count in range(len(times), rows + sum(map(len, gains)) + 1)])
        return worth_reading(gains, [rate * (seconds - times[rows]) for seconds in times[rows:]])

    def reading(self, pages: int) -> float:
        return self.costs().reading(pages) * self._row_and_rate()[1]

    def _row_and_rate(self) -> tuple[float, float]:
        """The seconds of a second row for each running request, by row, and the tokens a second without drafts."""
        count = self.work.num_running
        if count not in self._prices:
            costs = self.costs()
            plain = max(1e-9, costs.backbone.at(count))
            self._prices[count] = (costs.backbone.at(2 * count) - plain) / count + costs.draft, count / plain
        return self._prices[count]

    def rows_are_free(self) -> bool:
        """Whether a forward ahead of results takes less time with a second row for each request than one in turns.

        In turns a request also has a second row when it stores a block. No costs are measured for this alone.
        """
        if not isinstance(self._costs, StepCosts):
            return False
        count, backbone = self.work.num_running, self._costs.backbone
        if count not in self._free_rows:
            filled = round(count * (1 + 1 / self._block_size))
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
        copied = self._block_size if self.plan in {COPIED, REFINED} else 0
        least = price if price >= 1 else reliability.min_gain(price)
        return DraftBudget(least, self._max_states(self.work.num_running), mrp_steps, copied=copied)

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
    block. `by_device`: whether the device can draft, as its rows begin ahead.
    """

    __slots__ = ("_started", "by_device", "mrp_steps", "pages", "planner", "uses_mrp")

    def __init__(self, planner: DraftPlanner, uses_mrp: bool, mrp_steps: int | None) -> None:
        self.planner = planner
        self.uses_mrp, self.mrp_steps, self.pages, self.by_device = uses_mrp, mrp_steps, 0, False
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


class PlannedDrafts(RequestDrafts):
    """The drafts of a request with `auto`. `reliabilities`: without and with MRP."""

    __slots__ = ("_max_drafts", "_reliabilities", "_rule")

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

    @property
    def _drafts_by_device(self) -> bool:
        return self.by_device and self.planner.plan == DRAFTS

    def device_numbers(self) -> tuple[int, ...]:
        return self.planner.device_numbers(self._rule)[: self._max_drafts] if self._drafts_by_device else ()

    def drafts_next(self) -> bool:
        return self.planner.plan != PLAIN and worth_drafting(self._rule, self.budget())

    def expected_gains(self, gains: Sequence[float]) -> list[float]:
        price = self.planner.reading(self.pages)
        return [gain - price for gain in self._reliabilities[self.refines].actual_gains(gains)]

    def record(self, rows: int, steps: Sequence[Step]) -> None:
        super().record(rows, steps)
        for step in steps:
            if step.gains and not self._drafts_by_device:
                self._reliabilities[self.refines].count(step.gains)


@dataclass(slots=True)
class StepWork:
    """The work of a step: the running requests, and those that the backbone read, with their tokens."""

    num_running: int = 1
    prompt_rows: int = 0
    requests: int = 0
    tokens: int = 0
