"""What a row costs in tokens, and how many MRP forwards a request's drafts take: `mrp_steps: "auto"`.

The aim is the most tokens a second from the batch. A state that is met with likelihood p adds p tokens and takes the
time of a row; in that time the batch decodes so many tokens at its present rate. So the price of a row is the slope of
the forward's time at the present number of rows times the present rate, and what is likelier than its price is worth
verifying (Dinkelbach's method for the best ratio of tokens to time). Both come from one table of times (`costs.py`),
never from the clock. Knows counts of rows and tokens; no tensors and no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from service.decode.block import Step
from service.decode.draft_budget import DraftBudget
from service.decode.params import ModeParams
from service.decode.registry import leaves_drafts_open
from service.decode.rules import MostConfident
from service.engine.drafting.costs import StepCosts
from service.engine.drafting.mrp_choice import MrpChoice
from service.engine.drafting.reliability import Reliability
from service.engine.request import GenerationRequest

#: share that a step has in the running means
_FRESH = 1 / 16

#: drafts that keep alike: of the same kind of rule, of one pick a state, sampled, with so many MRP forwards
_Kind = tuple[str, bool, bool, int]


class Pricing:
    """The prices of one engine. `costs` is asked for once, when the first request wants to know."""

    def __init__(self, costs: Callable[[], StepCosts], max_rows: int) -> None:
        self._measure, self._max_rows = costs, max_rows
        self._costs: StepCosts | None = None
        self._running = 1
        self._rows = _Mean(1.0)
        self._tokens = _Mean(1.0)
        self._mrp = _Mean(0.0)
        self._pages = _Mean(0.0)
        self._step = _Step()
        self._slope: tuple[float, float] | None = None
        self._mrp_choice = MrpChoice()
        self._kinds: dict[_Kind, Reliability] = {}

    def costs(self) -> StepCosts:
        """What forwards cost; measured for the first who asks."""
        if self._costs is None:
            self._costs = self._measure()
        return self._costs

    def mrp_steps(self, params: ModeParams) -> int | None:
        """MRP forwards that a request's drafts are to take if it came now; None if that is not to be chosen."""
        if not leaves_drafts_open(params):
            return None
        costs = self.costs().behind(self._pages.value)
        return self._mrp_choice.best(costs, self._running + 1, self._most_states(self._running + 1))

    def open(self, request: GenerationRequest, mrp_steps: int | None) -> Account:
        """A request begins, with what `mrp_steps` said of it."""
        params = request.params
        if mrp_steps is None:
            return Account(self, params.needs_mrp, getattr(params, "mrp_steps", None))
        self._mrp_choice.count()
        rule, sampled = params.rule, request.sampling.temperature > 0
        kind = type(rule).__name__, rule == MostConfident(1), sampled, mrp_steps
        return DraftingAccount(self, self._mrp_choice, self._kinds.setdefault(kind, Reliability()), mrp_steps)

    def begin(self, running: int) -> None:
        """A step begins, with so many requests."""
        self._running, self._slope = max(1, running), None

    def note(self, rows: int, tokens: int, pages: int = 0) -> None:
        """A request had so many of its states read in this step (0: MRP read one) and so many tokens revealed.

        `pages`: those that each of its states reads.
        """
        step = self._step
        step.requests, step.rows, step.tokens = step.requests + bool(rows), step.rows + rows, step.tokens + tokens
        step.pages += rows * pages

    def end(self, refined: Iterable[int]) -> None:
        """The step ends; `refined`: the rows of each of its MRP forwards."""
        step, self._step = self._step, _Step()
        if not step.requests:
            return
        self._rows.add(step.rows / step.requests)
        self._tokens.add(step.tokens / step.requests)
        self._pages.add(step.pages / step.rows)
        if self._costs and self._costs.mrp:
            spent = sum(self._costs.mrp.at(rows) for rows in refined)
            self._mrp.add(spent / self._costs.backbone.at(step.rows))

    def row(self, pages: int = 0) -> float:
        """Tokens that the time of a further row, which reads so many pages, would be worth."""
        costs = self.costs()
        if self._slope is None:
            running = self._running
            rows = running * self._rows.value
            reading = rows * costs.reading(self._pages.value)
            seconds = (costs.backbone.at(rows) + reading) * (1 + self._mrp.value)
            low = max(running, rows - running / 2)
            slope = costs.backbone.slope(low, rows + running / 2) + costs.draft
            self._slope = slope, running * self._tokens.value / seconds
        slope, rate = self._slope
        return (slope + costs.reading(pages)) * rate

    def terms(self, mrp_steps: int, reliability: Reliability, pages: int) -> DraftBudget:
        """The terms by now of a request whose drafts are of a kind and read so many pages each."""
        price = self.row(pages)
        least = price if price >= 1 else reliability.least(price)
        return DraftBudget(least, self._most_states(self._running), mrp_steps)

    def _most_states(self, running: int) -> int:
        """A request's share of the rows of a forward, less its present state and a block to be stored."""
        return max(0, self._max_rows // running - 2)


class Account:
    """What one request may spend on drafts that are left to the engine: nothing, where none are.

    `mrp_steps`: its number of MRP forwards, asked for or chosen; None for modes that have none. `pages`: those before
    its block at hand, which each of its states reads.
    """

    def __init__(self, pricing: Pricing, uses_mrp: bool, mrp_steps: int | None) -> None:
        self._pricing = pricing
        self.uses_mrp = uses_mrp
        self.mrp_steps = mrp_steps
        self.pages = 0

    def terms(self) -> DraftBudget:
        """What its drafts may cost now."""
        return DraftBudget()

    def note(self, rows: int, steps: Sequence[Step]) -> None:
        """So many states were read, which led to the steps."""
        self._pricing.note(rows, sum(len(step.revealed) - len(step.revoked) for step in steps), self.pages)


class DraftingAccount(Account):
    """The account of a request whose drafts are left to the engine."""

    def __init__(self, pricing: Pricing, arms: MrpChoice, reliability: Reliability, mrp_steps: int) -> None:
        super().__init__(pricing, mrp_steps > 0, mrp_steps)
        self._mrp_choice = arms
        self._reliability = reliability
        self._chosen = mrp_steps

    def terms(self) -> DraftBudget:
        """What its drafts may cost now."""
        return self._pricing.terms(self._chosen, self._reliability, self.pages)

    def note(self, rows: int, steps: Sequence[Step]) -> None:
        """So many states were read, which led to the steps."""
        super().note(rows, steps)
        for step in steps:
            self._mrp_choice.learn(self._chosen, step.promises)
            self._reliability.learn(step.promises)


@dataclass(slots=True)
class _Step:
    requests: int = 0
    rows: int = 0
    tokens: int = 0
    pages: int = 0


class _Mean:
    """A running mean that forgets."""

    def __init__(self, value: float) -> None:
        self.value = value

    def add(self, value: float) -> None:
        """Another value."""
        self.value += _FRESH * (value - self.value)
