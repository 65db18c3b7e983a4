"""The fastest plan by the clock: worlds of plans whose speed is set, from one request to 128. No engine."""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import exp, log

import pytest

from service.engine.drafting.plan_clock import PlanChoice, PlanClock

#: seconds of a step without drafts, with one request
STEP_S = 0.01


class Service:
    """Requests that decode on one clock. `speeds`: of each plan, relative to plan 0's, which has 1 token a step.

    A request has 16 to 60 tokens. `tokens`: those of one step of a plan; a plan's step takes as long as its speed
    says. `prior`: the expected logs of speeds, by default the true ones. `request_s`: the part of a step's time that
    each request adds.
    """

    def __init__(
        self,
        speeds: Sequence[float],
        *,
        tokens: Sequence[float] = (1.0, 2.0, 2.5),
        fixed: Sequence[int] = (),
        noise: float = 0.0,
        seed: int = 0,
        prior: Callable[[int, int], float] | None = None,
        request_s: float = 0.02,
    ) -> None:
        self.speeds, self.tokens, self.noise, self.random = list(speeds), tokens, noise, random.Random(seed)
        self.now = self.seconds = self.static_s = 0.0
        self.request_s = request_s
        self.clock = PlanClock(lambda: self.now)
        self.choice = self.clock.add(PlanChoice(len(speeds), prior or self._true_prior, fixed))
        self.fixed, self.plans, self.requests = frozenset(fixed), list[int](), list[list[int]]()

    def _true_prior(self, plan: int, running: int) -> float:
        return log(self.speeds[plan])

    def run(self, steps: int, running: int = 8, pause_s: float = 0.0, prompts_s: float = 0.0) -> None:
        for _ in range(steps):
            self._start_and_end(running)
            plan = self.choice.plan
            ready = self.choice.started[plan] / running if plan in self.fixed else 1.0
            speed = ready * self.speeds[plan] + (1.0 - ready) * self.speeds[0]
            total = self._tokens_of(plan, running)
            plain_s = STEP_S * (1 + self.request_s * running)
            step_s = plain_s * self.tokens[plan] / speed
            step_s *= 1 + self.noise * self.random.uniform(-1, 1)
            self.now += step_s + pause_s + prompts_s
            self.seconds += step_s
            self.static_s += step_s * speed
            for request in self.requests:
                request[1] -= -(-total // running)
            self.plans.append(plan)
            self.clock.end(running, running, total, prompts_s, plain_s)

    def _tokens_of(self, plan: int, running: int) -> int:
        """Of one step. Plans without drafts have one for each request, other plans' numbers vary."""
        mean = self.tokens[plan] * running
        return running if self.tokens[plan] == 1.0 else max(0, round(self.random.gauss(mean, running**0.5)))

    def _start_and_end(self, running: int) -> None:
        started = self.choice.started
        started.subtract(plan for plan, left in self.requests if left <= 0)
        self.requests = [request for request in self.requests if request[1] > 0]
        started.subtract(plan for plan, _ in self.requests[running:])
        del self.requests[running:]
        while len(self.requests) < running:
            started[self.choice.starting] += 1
            self.requests.append([self.choice.starting, self.random.randint(16, 60)])

    @property
    def times_static(self) -> float:
        return self.static_s / self.seconds

    @property
    def times_best(self) -> float:
        """By the tokens that the plans give on average."""
        return self.static_s / self.seconds / max(self.speeds)


def test_in_random_worlds_no_plan_is_slower_than_plan_0_and_few_are_slower_than_the_best() -> None:
    """Plans worth .3 to 4 times plan 0, priors that know a world by half, noise of up to a fifth, 2,000 steps."""
    static, best = list[float](), list[float]()
    for seed in range(40):
        rng = random.Random(seed)
        speeds = [1.0, *(exp(rng.uniform(log(0.3), log(4))) for _ in range(2))]
        doubts = [0.0, *(rng.gauss(0.0, 0.2) for _ in range(2))]
        service = Service(
            speeds,
            tokens=(1.0, rng.uniform(1.2, 3.0), rng.uniform(1.2, 3.0)),
            fixed=(2,),
            noise=rng.uniform(0.0, 0.2),
            seed=seed,
            prior=lambda plan, _, speeds=speeds, doubts=doubts: log(speeds[plan]) + doubts[plan],  # type: ignore[misc]
        )
        service.run(2000, rng.choice([1, 2, 4, 8, 16, 32, 64, 128]))
        static.append(service.times_static)
        best.append(service.times_best)
    assert min(static) >= 0.97
    assert sorted(static)[4] >= 0.98
    assert sorted(best)[4] >= 0.95


@pytest.mark.parametrize("running", [1, 8, 64])
def test_a_plan_that_is_a_tenth_faster_runs_within_200_steps(running: int) -> None:
    service = Service([1.0, 1.1], noise=0.02)
    service.run(200, running)
    assert service.choice.load.best == 1


@pytest.mark.parametrize("running", [1, 8, 64])
def test_a_plan_of_half_the_speed_takes_a_hundredth_of_the_steps(running: int) -> None:
    service = Service([1.0, 0.5])
    service.run(6000, running)
    tried = [index for index, plan in enumerate(service.plans) if plan == 1]
    assert tried
    assert sum(index > 2000 for index in tried) <= 40


def test_trials_that_change_nothing_get_rarer() -> None:
    """A plan that is as fast loses nothing, so the time that it loses does not make its trials rare."""
    service = Service([1.0, 1.0], tokens=(1.0, 1.0))
    service.run(4000)
    starts = [index for index, pair in enumerate(pairwise(service.plans)) if pair == (0, 1)]
    gaps = [later - start for start, later in pairwise(starts)]
    assert gaps[3] > 6 * gaps[0]


def test_a_plan_that_becomes_fast_at_the_same_load_is_found_and_one_that_becomes_slow_is_left() -> None:
    service = Service([1.0, 0.8])
    service.run(2000)
    assert service.choice.load.best == 0
    service.speeds[1] = 1.5
    service.run(8000)
    assert service.choice.load.best == 1
    service.speeds[1] = 0.7
    service.run(3000)
    assert service.choice.load.best == 0


@pytest.mark.parametrize("event", ["pause", "prompt", "idle"])
def test_a_pause_a_long_prompt_or_an_idle_time_in_a_trial_changes_no_decision(event: str) -> None:
    service = Service([1.0, 1.3])
    while service.choice.plan == 0:
        service.run(1)
    service.run(4)
    if event == "idle":
        service.clock.idle()
        service.now += 100.0
    else:
        service.run(1, pause_s=1.0 * (event == "pause"), prompts_s=0.5 * (event == "prompt"))
    service.run(60)
    assert service.choice.load.best == 1


def test_requests_that_come_and_go_are_one_load_and_twice_as_many_another() -> None:
    service = Service([1.0, 0.5])
    service.run(400, 7)
    load = service.choice.load
    for _ in range(100):
        service.run(1, 7)
        service.run(1, 8)
        assert service.choice.load is load
    service.run(60, 16)
    assert service.choice.load is not load
    service.run(1, 64)
    assert service.clock._level == 6


def test_a_trial_that_another_load_cuts_short_waits_like_one_that_lost() -> None:
    service = Service([1.0, 1.0], noise=0.01)
    while service.choice.plan == 0:
        service.run(1, 2)
    service.run(1, 64)
    assert service.choice.plan == 0
    service.run(1, 2)
    assert service.choice.load.rivals[1].due_s > 0


def test_a_trial_among_fewer_requests_is_not_taken_for_a_faster_plan() -> None:
    """A step takes as long as its requests are many. The plan is a tenth slower, and fewer run in its trial."""
    service = Service([1.0, 0.9], prior=lambda *_: 0.0, request_s=1.0)
    for _ in range(400):
        service.run(1, 11 if service.choice.plan == 0 else 7)
    assert service.choice.load.best == 0
    assert service.choice.load.rivals[1].ratio == pytest.approx(log(0.9), abs=0.1)


def test_a_fixed_plan_is_tried_once_most_requests_started_with_it() -> None:
    service = Service([1.0, 1.5], fixed=(1,), prior=lambda *_: 0.0)
    while service.choice.plan == 0:
        service.run(1)
    assert service.choice.started[1] >= 6
    assert service.choice.starting == 1
    service.run(100)
    assert service.choice.load.best == service.choice.starting == 1


def test_where_every_plan_is_fixed_the_steps_of_a_change_count_for_none() -> None:
    """Between plans some requests have the one and some the other. Most of a trial's requests have its plan."""
    service = Service([1.0, 0.6], fixed=(0, 1))
    while not service.choice.load.rivals[1].weight:
        service.run(1)
    assert log(0.6) - 0.1 < service.choice.load.rivals[1].ratio < log(0.75 * 0.6 + 0.25) + 0.1
    assert service.choice.starting == 0


def test_equal_clocks_give_equal_plans() -> None:
    services = [Service([1.0, 1.2, 0.7], noise=0.1, seed=5) for _ in range(2)]
    for service in services:
        service.run(500)
    assert services[0].plans == services[1].plans


def test_a_clock_that_stands_still_ends_nothing() -> None:
    clock = PlanClock(lambda: 1.0)
    choice = clock.add(PlanChoice(2, lambda *_: 0.0))
    choice.started[0] += 1
    for _ in range(100):
        clock.end(1, 1, 1)
    assert choice.plan in {0, 1}


def test_a_plan_that_is_expected_to_be_much_faster_runs_from_the_start_and_plan_0_is_tried_soon() -> None:
    service = Service([1.0, 0.8], prior=lambda *_: 0.5)
    service.run(40)
    assert service.plans[0] == 1
    assert service.choice.load.best == 0
    assert service.plans.count(1) < 20


def test_expectations_move_with_plan_0_once_it_is_measured() -> None:
    """All are expected to be twice as fast as they are. The second one is still the best, and is found."""
    service = Service([1.0, 1.0, 1.3], prior=lambda plan, _: (0.0, 0.7, 0.5)[plan])
    service.run(300)
    assert service.choice.load.best == 2


def test_a_trial_ends_where_nothing_runs_that_it_is_about() -> None:
    """Other requests go on, and say nothing about it."""
    service = Service([1.0, 1.5], prior=lambda *_: 0.0)
    while service.choice.plan == 0:
        service.run(1)
    service.choice.started.clear()
    for _ in range(50):
        service.now += STEP_S
        service.clock.end(8, 8, 800)
    assert (service.choice.plan, service.choice.load.best) == (0, 0)


def test_requests_that_start_together_start_with_the_plan_of_their_number() -> None:
    """One request is expected to be faster with the plan, 32 are not."""
    clock = PlanClock(lambda: 0.0)
    choice = clock.add(PlanChoice(2, lambda _, running: 0.5 if running < 8 else -0.5, fixed=(1,)))
    assert choice.starting == 1
    clock.idle(32)
    assert choice.starting == 0
    clock.idle(1)
    assert choice.starting == 1


def test_steps_with_prompts_count_for_no_plan_and_many_in_a_row_end_a_trial() -> None:
    service = Service([1.0, 1.3], prior=lambda *_: 0.0)
    while service.choice.plan == 0:
        service.run(1)
    service.run(10, prompts_s=0.5)
    assert (service.choice.plan, service.choice.load.best) == (1, 0)
    service.run(10, prompts_s=0.5)
    assert (service.choice.plan, service.choice.load.best) == (0, 0)


def test_no_trial_begins_while_most_steps_have_prompts() -> None:
    """It would last long: between prompts there are two steps at a time that count."""
    service = Service([1.0, 0.5], prior=lambda *_: 0.0)
    service.run(40, prompts_s=0.1)
    for step in range(400):
        service.run(1, prompts_s=0.0 if step % 10 < 2 else 0.1)
    assert not any(service.plans)
    assert not service.choice.load.rivals[1].unchanged
    service.run(40)
    assert 0 < service.plans.count(1) < 20
