"""The fastest of a few plans, by the engine's clock: the plan with the most tokens a second at the present load.

A model of costs does not see the host, mixed steps, or what else runs on the machine. The clock sees them all. Each
load has a best plan: at first plan 0, or a plan that is expected to be much faster. The other plans are its rivals. A
trial of a rival follows right after steps of the best plan. It is compared with them alone, so drift and content
cancel. The time that trials lose is bounded.

This file knows no tensors, no requests and no prices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import exp, log, log2, sqrt

#: weight of a step in the running means: of the running requests, of a step's seconds, and of steps with prompts
_FRESH = 1 / 16
#: A load is a rounded log2 of the running requests. It changes where their mean is farther than `_PLAY` from its
#: middle. If they jump by more than `_JUMP` it changes at once.
_PLAY, _JUMP = 0.75, 1.5
#: the request-steps before a trial, with which it is compared, and the least and the most steps of them
_REQUEST_STEPS, _LEAST_STEPS, _MOST_STEPS = 64, 3, 24
#: A trial ends after n request-steps, `_EARLY` at least, if its log ratio is farther than _DOUBT / sqrt(n) from 0. Near
#: ties cost little. They last `_TIE` times as long as the steps before them.
_EARLY, _DOUBT, _TIE = 16, 1.2, 4
#: steps after a change of plan that count for no plan, since they began under the other one
_BETWEEN = 2
#: the log ratio with which a rival becomes the best plan; the expected one with which a plan begins as the best one,
#: and the weight of that, in trials, when plan 0 is tried soon after
_BETTER, _HOPE, _HOPE_WEIGHT = 0.02, 0.05, 0.1
#: The time that a rival's trials may lose, as a share of the time between them. Between two trials are at least
#: `_PAUSE` times the seconds of the last trial. Each trial that changes nothing doubles this, `_DOUBLINGS` times at
#: most. The limit is `_LONGEST_S` seconds.
_LOSS, _PAUSE, _DOUBLINGS, _LONGEST_S = 0.005, 6.0, 3, 120.0
#: A step longer than `_LONGEST_STEP` mean steps counts for no plan, since the machine has paused. Of several in a row
#: only the first one does not count.
_LONGEST_STEP = 4.0
#: Steps with rows of prompts count for no plan, since their price is an estimate. While a larger share of the latest
#: steps has them, no trial runs.
_MOST_PROMPTED = 0.7
#: the share of the running requests that must have started with a plan which only they can run
_SHARE = 0.75


@dataclass(slots=True)
class _Progress:
    """The tokens of steps, and their time: in plain steps, times requests. The latest steps count if there are many."""

    tokens: float = 0.0
    time: float = 0.0
    requests: float = 0.0
    steps: float = 0.0

    def add(self, decoding: int, tokens: int, plain_steps: float) -> None:
        if self.is_enough(2 * _TIE):
            self.tokens, self.time = self.tokens / 2, self.time / 2
            self.requests, self.steps = self.requests / 2, self.steps / 2
        self.tokens += tokens
        self.time += plain_steps * decoding
        self.requests += decoding
        self.steps += 1

    def is_enough(self, times: int = 1) -> bool:
        by_requests = self.steps >= _LEAST_STEPS and self.requests >= times * _REQUEST_STEPS
        return by_requests or self.steps >= times * _MOST_STEPS

    def is_clear(self, ratio: float) -> bool:
        """Whether a trial with this log ratio has gone on for long enough."""
        early = self.steps >= _LEAST_STEPS and self.requests >= _EARLY
        return self.is_enough(_TIE) or (early and abs(ratio) > _DOUBT / sqrt(self.requests))

    @property
    def log_rate(self) -> float:
        """The log of tokens by time. It is finite, whatever the clock says."""
        return log(max(self.tokens, 0.5) / max(self.time, 1e-9))


@dataclass(slots=True)
class _Rival:
    """A plan beside the best one. `ratio`: the log of its progress over the best plan's, the mean of its trials.

    `weight`: the number of these trials, where earlier ones count less; 0: none, so `ratio` is expected. `due_s`: the
    seconds at its load until the next trial. `unchanged`: the last trials in a row that changed nothing.
    """

    ratio: float
    due_s: float = 0.0
    weight: float = 0.0
    unchanged: int = 0

    def is_due(self, trial_s: float) -> bool:
        """Whether it is to be tried. `trial_s`: the usual seconds of a trial, which may lose the assumed ratio."""
        return self.due_s + (0.0 if self.weight else _lost_s(self.ratio, trial_s) / _LOSS) <= 0

    def count(self, ratio: float) -> None:
        self.weight = self.weight / 2 + 1
        self.ratio += (ratio - self.ratio) / self.weight

    def wait(self, spent_s: float) -> None:
        """Sets the time until the next trial. `spent_s`: the seconds of the last trial."""
        due_s = max(_PAUSE * spent_s, _lost_s(self.ratio, spent_s) / _LOSS)
        self.due_s = min(due_s * 2**self.unchanged, _LONGEST_S)
        self.unchanged = min(self.unchanged + 1, _DOUBLINGS)


def _lost_s(ratio: float, seconds: float) -> float:
    return seconds * max(0.0, 1.0 - exp(ratio))


@dataclass(slots=True)
class _Load:
    """The best plan of a load, and the rivals by their plans."""

    best: int
    rivals: dict[int, _Rival]

    def judge(self, plan: int, ratio: float, spent_s: float) -> None:
        """A trial of a plan is over. Perhaps it is the best plan from now on, and the former one its first rival."""
        rival = self.rivals[plan]
        before = rival.ratio
        rival.count(ratio)
        if not plan:  # what is expected of the others is relative to plan 0
            for other in self.rivals.values():
                other.ratio += 0.0 if other.weight else rival.ratio - before
        if rival.ratio <= _BETTER:
            rival.wait(spent_s)
            return
        del self.rivals[plan]
        for other in self.rivals.values():
            other.ratio -= rival.ratio
            other.unchanged = 0
        self.rivals[self.best] = _Rival(-rival.ratio, _PAUSE * spent_s, rival.weight)
        self.best = plan


class PlanChoice:
    """The plans of one kind of request, by number. `plan` runs now. New requests start with `starting`.

    `prior(plan, running)`: the expected log of a plan's progress over plan 0's. `fixed`: the plans that only requests
    run that started with them. Where all are fixed, every request keeps its plan.
    """

    def __init__(self, num_plans: int, prior: Callable[[int, int], float], fixed: Collection[int] = ()) -> None:
        self.num_plans, self._prior, self._fixed = num_plans, prior, frozenset(fixed)
        self.plan = self.starting = 0
        self.started = Counter[int]()  # the running requests by the plan with which they started
        self._loads: dict[int, _Load] = {}
        self.load = _Load(0, {})

    @property
    def keeps_plans(self) -> bool:
        return len(self._fixed) == self.num_plans

    def is_ready(self, plan: int) -> bool:
        """Whether enough of the running requests can run the plan."""
        return plan not in self._fixed or self.started[plan] >= _SHARE * self.started.total()

    def run(self, plan: int) -> None:
        """The plan runs from now on. While a load's best plan is a fixed one, requests start with that."""
        self.plan = plan
        self.starting = plan if plan in self._fixed or self.load.best not in self._fixed else self.load.best

    def move(self, level: int) -> None:
        """The load is 2 ** level running requests now."""
        if level not in self._loads:
            self._loads[level] = self._new_load(level)
        self.load = self._loads[level]
        self.run(self.load.best)

    def _new_load(self, level: int) -> _Load:
        ratios = [0.0, *(self._prior(plan, 1 << level) for plan in range(1, self.num_plans))]
        best = ratios.index(max(ratios)) if max(ratios) > _HOPE else 0
        rivals = {plan: _Rival(ratio - ratios[best]) for plan, ratio in enumerate(ratios) if plan != best}
        if best:
            rivals[0].weight = _HOPE_WEIGHT  # its trial does not wait for what it is expected to lose
        return _Load(best, rivals)

    def due(self, seconds: float, trial_s: float) -> int | None:
        """The plan whose trial is due, the most hopeful first.

        `seconds`: the time of the best plan's last step. `trial_s`: the usual seconds of a trial.
        """
        for rival in self.load.rivals.values():
            rival.due_s -= seconds
        due = [plan for plan, rival in self.load.rivals.items() if rival.is_due(trial_s)]
        return max(due, key=lambda plan: self.load.rivals[plan].ratio, default=None)


class PlanClock:
    """Runs the trials of all choices, one at a time. `clock`: the engine's, in seconds; nothing else is measured."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.choices = list[PlanChoice]()
        self._last: float | None = None  # the end of the last step, None after an idle time
        self._step_s, self._is_long = 0.0, False  # the mean seconds of a step; whether the last one was much longer
        self._level, self._mean = 0, 0.0  # the load, and the mean of the running requests' log2
        self._progress = _Progress()  # of the present plans
        self._skip, self._prompted = 0, 0.0  # the next steps that count for no plan; the share of steps with prompts
        self._trial: tuple[PlanChoice, int] | None = None  # a plan that is tried, or is to be once it is ready
        self._spent_s, self._base = 0.0, 0.0  # the trial's seconds, and the rate with which it is compared

    def add(self, choice: PlanChoice) -> PlanChoice:
        self.choices.append(choice)
        choice.move(self._level)
        return choice

    @property
    def _trial_s(self) -> float:
        """The usual seconds of a trial."""
        steps = min(_MOST_STEPS, max(_LEAST_STEPS, _REQUEST_STEPS / 2**self._mean))
        return self._step_s * (steps + _BETWEEN)

    def idle(self, expected: int = 0) -> None:
        """Nothing runs. No step counts until the next one has ended. `expected`: the requests that start now."""
        self._last = None
        if expected:
            self._mean = log2(expected)
            if abs(self._mean - self._level) > _PLAY:
                self._change_load()

    def end(self, running: int, decoding: int, tokens: int, prompts_s: float = 0.0, plain_s: float = 1.0) -> None:
        """A step of `running` requests has ended. Some decoded. `prompts_s`: the seconds of its rows of prompts.

        `plain_s`: the expected seconds of a step without drafts that decodes these requests. Only its ratios count. By
        them a trial is compared with steps of other numbers of requests.
        """
        now = self._clock()
        last, self._last = self._last, now
        if self._is_other_load(running):
            self._change_load()
            return
        if last is None:
            return
        seconds = max(0.0, now - last - prompts_s)
        self._step_s = self._step_s or seconds
        was_long, self._is_long = self._is_long, seconds > _LONGEST_STEP * self._step_s
        if self._is_long and not was_long:
            return
        self._step_s += _FRESH * (seconds - self._step_s)
        self._prompted += _FRESH * ((prompts_s > 0) - self._prompted)
        if self._trial is None:
            self._find_trial(seconds)
        self._count(seconds)
        if self._skip:
            self._skip -= 1
        elif not prompts_s:
            self._add(decoding, tokens, seconds / max(plain_s, 1e-9))

    def _is_other_load(self, running: int) -> bool:
        level = log2(max(1, running))
        self._mean = level if abs(level - self._mean) > _JUMP else self._mean + _FRESH * (level - self._mean)
        return abs(self._mean - self._level) > _PLAY

    def _change_load(self) -> None:
        self._drop_trial()
        self._level = round(self._mean)
        for choice in self.choices:
            choice.move(self._level)
        self._restart()

    def _drop_trial(self) -> None:
        """A trial that cannot end waits as if it had lost."""
        if self._trial is not None:
            choice, plan = self._trial
            choice.load.rivals[plan].wait(max(self._spent_s, self._trial_s))
            choice.run(choice.load.best)
            self._trial = None

    def _restart(self) -> None:
        self._progress, self._skip = _Progress(), _BETWEEN

    def _find_trial(self, seconds: float) -> None:
        for choice in self.choices:
            plan = choice.due(seconds, self._trial_s) if choice.started.total() else None
            if plan is not None and self._progress.is_enough() and self._prompted <= _MOST_PROMPTED:
                self._trial, self._spent_s = (choice, plan), 0.0
                if not choice.is_ready(plan):
                    choice.starting = plan
                return

    def _count(self, seconds: float) -> None:
        """Counts the seconds of a step for the trial, or begins it."""
        if self._trial is None:
            return
        choice, plan = self._trial
        if choice.plan == plan:
            self._spent_s += seconds
        if not choice.started.total() or self._prompted > _MOST_PROMPTED:
            self._drop_trial()
            self._restart()
        elif choice.plan != plan:
            self._prepare(choice, plan, seconds)

    def _add(self, decoding: int, tokens: int, plain_steps: float) -> None:
        """Adds a step to the progress of the present plans, and judges the trial."""
        if all(choice.is_ready(choice.plan) for choice in self.choices):
            self._progress.add(decoding, tokens, plain_steps)
        if self._trial is not None:
            self._judge(*self._trial)

    def _prepare(self, choice: PlanChoice, plan: int, seconds: float) -> None:
        if choice.keeps_plans:
            self._spent_s += seconds
        if choice.is_ready(plan):
            self._base = self._progress.log_rate
            choice.run(plan)
            self._restart()

    def _judge(self, choice: PlanChoice, plan: int) -> None:
        ratio = self._progress.log_rate - self._base
        if choice.plan == plan and self._progress.is_clear(ratio):
            choice.load.judge(plan, ratio, self._spent_s)
            self._trial = None
            choice.run(choice.load.best)
            self._restart()
