"""The price of a row in tokens, and the number of MRP forwards for a request's drafts: `mrp_steps: "auto"`.

The aim is the most tokens per second from the batch. Verifying one more state costs one row. If decoding passes
through the state with probability p, verifying it gains p tokens. It is worth its cost if p is larger than the number
of tokens that the batch could decode in the time of one row (Dinkelbach's method for the best ratio of tokens to time).
Times are those of the measured table (`costs.py`), not the clock's, so a slow machine makes the same choices.

This is decided twice. `row` is the price by which a request's tree grows: the slope of a convex curve below the table.
`kept` cuts the trees of all requests of a forward together, by the table itself (`weighing.py`). Where some numbers of
rows are dear, only the second knows at which number to stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from service.decode.block import Step
from service.decode.draft_budget import DraftBudget
from service.decode.mode import DecodingMode
from service.decode.registry import leaves_drafts_open
from service.decode.rules import TopConfidence
from service.engine.drafting.costs import StepCosts
from service.engine.drafting.curve import Curve
from service.engine.drafting.mrp_choice import MrpChoice
from service.engine.drafting.reliability import Reliability
from service.engine.drafting.weighing import worth_reading
from service.engine.request import GenerationRequest

#: weight of a step in the running means
_FRESH = 1 / 16

#: drafts of similar reliability: kind of rule, whether it picks one token per state, whether sampled, whether drafts
#: that are only near are accepted, MRP forwards
_Kind = tuple[str, bool, bool, bool, int]


class Pricing:
    """The prices of one engine. `costs` is called once, for the first request that needs a price."""

    def __init__(self, costs: Callable[[], StepCosts], max_rows: int) -> None:
        self._measure, self._max_rows = costs, max_rows
        self._costs: StepCosts | None = None
        self._rows = _Mean(1.0)
        self._tokens = _Mean(1.0)
        self._mrp = _Mean(0.0)
        self._pages = _Mean(0.0)
        self.work = StepWork()
        self._slope: tuple[float, float] | None = None
        self._onward: dict[int, Curve] = {}
        self._seconds: list[float] = []
        self._dear: dict[tuple[int, int], DraftBudget] = {}
        self._mrp_choices = {decide: MrpChoice() for decide in (False, True)}
        self._kinds: dict[_Kind, Reliability] = {}

    def costs(self) -> StepCosts:
        """The costs of forwards, measured on the first call."""
        if self._costs is None:
            self._costs = self._measure()
        return self._costs

    def mrp_steps(self, params: DecodingMode) -> int | None:
        """The MRP forwards for the drafts of a request that comes now. None if the engine does not choose them."""
        if not leaves_drafts_open(params):
            return None
        costs, choice = self.costs().behind(self._pages.value), self._mrp_choices[params.drafts_decide]
        return choice.best(costs, self.work.running + 1, self._most_states(self.work.running + 1))

    def open(self, request: GenerationRequest, mrp_steps: int | None) -> Account:
        """The account of a request that begins. `mrp_steps`: the result of the method `mrp_steps`."""
        params = request.params
        if mrp_steps is None:
            return Account(self, params.needs_mrp, getattr(params, "mrp_steps", None))
        choice = self._mrp_choices[params.drafts_decide]
        choice.count()
        rule, sampled = params.rule, request.sampling.temperature > 0
        rule = rule if request.grammar is None else rule.in_order
        kind = type(rule).__name__, rule == TopConfidence(1), sampled, params.drafts_decide, mrp_steps
        return DraftingAccount(self, choice, self._kinds.setdefault(kind, Reliability()), mrp_steps)

    def begin(self, running: int) -> None:
        """Notes the begin of a step of `running` requests."""
        self.resume(StepWork(max(1, running)))

    def resume(self, work: StepWork) -> None:
        """Goes on with a step that has begun. Steps of two halves of the requests alternate."""
        self.work, self._slope = work, None
        self._dear.clear()

    def note(self, rows: int, tokens: int, pages: int = 0) -> None:
        """Counts the work of one request in this step.

        `rows`: its states that the backbone read (0: MRP read one). `tokens`: its revealed tokens. `pages`: the pages
        that each of its states reads.
        """
        step = self.work
        step.requests += bool(rows)
        step.rows += rows
        step.tokens += tokens
        step.pages += rows * pages

    def end(self, refined: Iterable[int]) -> None:
        """Notes the end of the step. `refined`: the rows of each of its MRP forwards."""
        step, self.work = self.work, StepWork(self.work.running)
        if not step.requests:
            return
        self._rows.add(step.rows / step.requests)
        self._tokens.add(step.tokens / step.requests)
        self._pages.add(step.pages / step.rows)
        if self._costs and self._costs.mrp:
            spent = sum(self._costs.mrp.at(rows) for rows in refined)
            self._mrp.add(spent / self._costs.backbone.at(step.rows))

    def row(self, pages: int = 0) -> float:
        """The price, in tokens, of one more row that reads `pages` pages."""
        slope, rate = self._slope or self._slope_and_rate()
        return (slope + self.costs().reading(pages)) * rate

    def kept(self, rows: int, offers: Sequence[Sequence[float]]) -> list[int]:
        """How many states of each offer the next forward reads beside `rows` other rows.

        An offer: the gains of a request's states, in their order.
        """
        times, (_, rate) = self._times(rows + sum(map(len, offers))), self._slope_and_rate()
        return worth_reading(offers, [rate * (seconds - times[rows]) for seconds in times[rows:]])

    def _times(self, most: int) -> list[float]:
        """The times of forwards over no row, one row, … and at least up to `most` rows."""
        times, backbone = self._seconds, self.costs().backbone
        times.extend([backbone.at(rows) for rows in range(len(times), most + 1)])
        return times

    def reading(self, pages: int) -> float:
        """The price, in tokens, of the pages that a row reads beyond those of the table."""
        return self.costs().reading(pages) * self._slope_and_rate()[1]

    def _slope_and_rate(self) -> tuple[float, float]:
        """The time of one more row, and the tokens that the batch decodes in a unit of time."""
        if self._slope is None:
            costs, running = self.costs(), self.work.running
            rows = running * self._rows.value
            if running not in self._onward:
                self._onward[running] = costs.backbone.onward(running)
            slope = self._onward[running].slope(max(running, rows - running / 2), rows + running / 2) + costs.draft
            self._slope = slope, running * self._tokens.value / self.forwards_of(running)
        return self._slope

    def forwards_of(self, running: int) -> float:
        """The time of the forwards of a step of so many requests."""
        costs, rows = self.costs(), running * self._rows.value
        reading = rows * costs.reading(self._pages.value)
        return (costs.backbone.at(rows) + reading) * (1 + self._mrp.value)

    def budget(self, mrp_steps: int, reliability: Reliability, pages: int) -> DraftBudget:
        """The current budget of a request. `reliability`: of its kind of drafts. `pages`: those each state reads."""
        if (budget := self._dear.get((mrp_steps, pages))) is not None:
            return budget
        price, most = self.row(pages), self._most_states(self.work.running)
        if price < 1:
            return DraftBudget(reliability.least(price), most, mrp_steps)
        self._dear[mrp_steps, pages] = budget = DraftBudget(price, most, mrp_steps)
        return budget

    def _most_states(self, running: int) -> int:
        """A request's share of the rows of a forward, less its current state and a block to store."""
        return max(0, self._max_rows // running - 2)


class Account:
    """The draft budget of one request. This class is for requests whose drafts the engine does not choose.

    `mrp_steps`: the number of MRP forwards, as requested or chosen; None for modes that have none. `pages`: the pages
    before the current block, which each of its states reads.
    """

    def __init__(self, pricing: Pricing, uses_mrp: bool, mrp_steps: int | None) -> None:
        self._pricing = pricing
        self.uses_mrp = uses_mrp
        self.mrp_steps = mrp_steps
        self.pages = 0

    def budget(self) -> DraftBudget:
        """What its drafts may cost now."""
        return DraftBudget()

    def gains(self, promises: Sequence[float]) -> list[float]:
        """The tokens that states with these promises bring, less what they read."""
        return list(promises)

    def note(self, rows: int, steps: Sequence[Step]) -> None:
        """So many states were read, which led to the steps."""
        tokens = 0
        for step in steps:
            tokens += len(step.revealed) - len(step.remasked)
        self._pricing.note(rows, tokens, self.pages)


class DraftingAccount(Account):
    """The draft budget of a request whose drafts the engine chooses."""

    def __init__(self, pricing: Pricing, mrp_choice: MrpChoice, reliability: Reliability, mrp_steps: int) -> None:
        super().__init__(pricing, mrp_steps > 0, mrp_steps)
        self._mrp_choice = mrp_choice
        self._reliability = reliability
        self._chosen = mrp_steps

    def budget(self) -> DraftBudget:
        """What its drafts may cost now."""
        return self._pricing.budget(self._chosen, self._reliability, self.pages)

    def gains(self, promises: Sequence[float]) -> list[float]:
        """The tokens that states with these promises bring, less what they read."""
        read = self._pricing.reading(self.pages)
        return [gain - read for gain in self._reliability.gains(promises)]

    def note(self, rows: int, steps: Sequence[Step]) -> None:
        """So many states were read, which led to the steps."""
        super().note(rows, steps)
        for step in steps:
            if step.promises:
                self._mrp_choice.learn(self._chosen, step.promises)
                self._reliability.learn(step.promises)


@dataclass(slots=True)
class StepWork:
    """The work of a step of `running` requests: those that the backbone has read, their rows, tokens and pages."""

    running: int = 1
    requests: int = 0
    rows: int = 0
    tokens: int = 0
    pages: int = 0


class _Mean:
    """An exponential running mean."""

    def __init__(self, value: float) -> None:
        self.value = value

    def add(self, value: float) -> None:
        """Adds a value."""
        self.value += _FRESH * (value - self.value)
