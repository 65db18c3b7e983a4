"""A small bandit over the number of MRP forwards for a request's drafts.

The number is chosen once, when the request is admitted, since MRP's own KV is written with the prompt. The bandit picks
the number with the best measured gain per cost. One request in 32 tries a neighbouring number, unless that would lose
even if it gained much more than it is known to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from service.engine.drafting.costs import StepCosts

#: The gain of the demo's trees of 4 to 16 states (dev/lab/performance-log.md): _GAIN * log2(1 + states) more steps
#: per forward, times the factor for the number of MRP forwards.
_GAIN = 0.45
_WITH_MRP = {0: 1.0, 1: 1.19, 2: 1.24, 4: 1.27}
#: the sizes of trees that are compared
_SIZES = (1, 2, 4, 8, 16)
#: weight of a guess in steps, and the number of steps after which all counts are halved
_WEIGHT, _MEMORY = 100.0, 10_000.0
#: one request of so many tries a neighbouring option, if that would be the best one with so many times its gain
_EXPLORE, _HOPE = 32, 1.5


@dataclass(slots=True)
class _Option:
    """One number of MRP forwards. `kept`: additional steps by its trees. `promised`: the steps that were guessed."""

    guess: float
    kept: float = 0.0
    promised: float = 0.0

    def gain(self, overall: float) -> float:
        """The measured gain. Before anything is measured, the guess times the ratio over all options."""
        return self.guess * (overall * _WEIGHT + self.kept) / (_WEIGHT + self.promised)

    def learn(self, states: int, steps: float) -> None:
        self.promised += self.guess * log2(1 + states)
        self.kept += steps
        if self.promised > _MEMORY:
            self.kept, self.promised = self.kept / 2, self.promised / 2


class MrpChoice:
    """The options, with their measured gains."""

    def __init__(self) -> None:
        self._options = {steps: _Option(_GAIN * factor) for steps, factor in _WITH_MRP.items()}
        self._requests = 0

    def best(self, costs: StepCosts, running: int, most: int) -> int:
        """The number of MRP forwards for a request.

        `running`: running requests, this one included. `most`: the most states of each that may be verified.
        """
        steps, load = list(self._options) if costs.mrp else [0], (running, most)
        overall = self._overall()
        gains = {option: self._options[option].gain(overall) for option in steps}
        rates = {option: _rate(option, gains[option], costs, load) for option in steps}
        best = max(steps, key=lambda option: rates[option])
        turn, explores = divmod(self._requests + 1, _EXPLORE)
        if explores == 0 and rates[best] > running / costs.backbone.at(running):
            place = steps.index(best)
            near = steps[max(0, place + (1 if (turn % 2 or place == 0) and place + 1 < len(steps) else -1))]
            if _rate(near, _HOPE * gains[near], costs, load) > rates[best]:
                return near
        return best

    def count(self) -> None:
        """Counts a request that uses an option."""
        self._requests += 1

    def learn(self, steps: int, promises: Sequence[tuple[float, int]]) -> None:
        """Learns from the states of one verification, of a request with `steps` MRP forwards."""
        self._options[steps].learn(len(promises), sum(kept > 0 for _, kept in promises))

    def _overall(self) -> float:
        """The ratio of kept to guessed steps over all options."""
        known = self._options.values()
        return (_WEIGHT + sum(one.kept for one in known)) / (_WEIGHT + sum(one.promised for one in known))


def _rate(option: int, gain: float, costs: StepCosts, load: tuple[int, int]) -> float:
    """Steps per time with the best size of tree, if all running requests used this option.

    `load`: the number of running requests, and the most states of each.
    """
    running, most = load
    refining = option * costs.mrp.at(running) if costs.mrp else 0.0
    rates = [running / (costs.backbone.at(running) + refining)]
    for states in _SIZES:
        if states <= most:
            seconds = costs.backbone.at(running * (1 + states)) + running * states * costs.draft + refining
            rates.append(running * (1 + gain * log2(1 + states)) / seconds)
    return max(rates)
