"""A small bandit over the number of MRP forwards a request's drafts take.

The number is chosen once, when the request is admitted: MRP's own KV is written along with the prompt. The bandit picks
the number with the best measured gain per cost. One request in 32 tries a neighbouring number. Knows numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from service.engine.drafting.costs import StepCosts

#: What the demo's trees of 4 to 16 states bring (dev/lab/performance-log.md): log2(1 + states) times this of further
#: steps a forward, and so many times as much with MRP's forwards.
_GAIN = 0.45
_WITH_MRP = {0: 1.0, 1: 1.19, 2: 1.24, 4: 1.27}
#: sizes of trees that are thought through
_SIZES = (1, 2, 4, 8, 16)
#: steps that a guess weighs, and those after which what was learned begins to be forgotten
_WEIGHT, _MEMORY = 100.0, 10_000.0
#: one of so many requests takes another arm
_EXPLORE = 32


@dataclass(slots=True)
class _Arm:
    """`kept`, `promised`: further steps by trees of this arm, and what the guess had said of them."""

    guess: float
    kept: float = 0.0
    promised: float = 0.0

    def learn(self, states: int, steps: float) -> None:
        self.promised += self.guess * log2(1 + states)
        self.kept += steps
        if self.promised > _MEMORY:
            self.kept, self.promised = self.kept / 2, self.promised / 2


class MrpChoice:
    """Numbers of MRP forwards, and what each has brought."""

    def __init__(self) -> None:
        self._mrp_choice = {steps: _Arm(_GAIN * factor) for steps, factor in _WITH_MRP.items()}
        self._requests = 0

    def best(self, costs: StepCosts, running: int, most: int) -> int:
        """MRP forwards for a request, one of so many that run and may have `most` states verified each."""
        steps = list(self._mrp_choice) if costs.mrp else [0]
        overall = self._overall()
        rates = {arm: self._rate(arm, overall, costs, (running, most)) for arm in steps}
        place = steps.index(max(steps, key=lambda arm: rates[arm]))
        plain = running / costs.backbone.at(running)
        turn, explores = divmod(self._requests + 1, _EXPLORE)
        if explores == 0 and rates[steps[place]] > plain:
            place += 1 if (turn % 2 or place == 0) and place + 1 < len(steps) else -1
        return steps[max(0, place)]

    def count(self) -> None:
        """A request has taken an arm."""
        self._requests += 1

    def learn(self, steps: int, promises: Sequence[tuple[float, int]]) -> None:
        """What the states of a verification have kept, of a request with so many MRP forwards."""
        if promises:
            self._mrp_choice[steps].learn(len(promises), sum(kept > 0 for _, kept in promises))

    def _overall(self) -> float:
        """How far off the guesses are, over all arms."""
        known = self._mrp_choice.values()
        return (_WEIGHT + sum(one.kept for one in known)) / (_WEIGHT + sum(one.promised for one in known))

    def _rate(self, arm: int, overall: float, costs: StepCosts, load: tuple[int, int]) -> float:
        """Steps per time with the best size of tree, if all that run did so. `load`: how many do, and the most states.

        A new arm's guess is believed to be as far off as the others'.
        """
        running, most = load
        own = self._mrp_choice[arm]
        gain = own.guess * (overall * _WEIGHT + own.kept) / (_WEIGHT + own.promised)
        refining = arm * costs.mrp.at(running) if costs.mrp else 0.0
        rates = [running / (costs.backbone.at(running) + refining)]
        for states in _SIZES:
            if states <= most:
                seconds = costs.backbone.at(running * (1 + states)) + running * states * costs.draft + refining
                rates.append(running * (1 + gain * log2(1 + states)) / seconds)
        return max(rates)
