"""Plans that a test chooses, in the place of the engine's clock: every plan runs, whatever is fast on this machine.

`test_plan_clock.py` and the simulated worlds (`benchmarks/simulated`) test the clock.
"""

import random
from collections.abc import Callable

import pytest

from service.engine.drafting import planner
from service.engine.drafting.plan_clock import PlanChoice, PlanClock


class ChosenPlans(PlanClock):
    """`choose`: a plan of so many, asked when a choice begins and after each step."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        super().__init__(lambda: 0.0)
        self._choose = choose

    def add(self, choice: PlanChoice) -> PlanChoice:
        super().add(choice)
        self.end(1, 1, 0)
        return choice

    def end(self, running: int, decoding: int, tokens: int, prompts_s: float = 0.0, plain_s: float = 1.0) -> None:
        for choice in self.choices:
            choice.plan, choice.starting = self._choose(choice.num_plans), self._choose(choice.num_plans)


def use_plans(monkeypatch: pytest.MonkeyPatch, choose: Callable[[int], int]) -> None:
    """Engines that are made from now on run these plans."""
    monkeypatch.setattr(planner, "PlanClock", lambda _: ChosenPlans(choose))


def use_plan(monkeypatch: pytest.MonkeyPatch, plan: int) -> None:
    """They run one plan, or the last one where there are fewer."""
    use_plans(monkeypatch, lambda count: min(plan, count - 1))


def use_any_plans(monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> None:
    """They run another plan after each step, by chance."""
    use_plans(monkeypatch, random.Random(seed).randrange)
