"""A small bandit over the number of MRP forwards for a request's drafts.

The number is chosen once, when the request is admitted, since MRP's own KV is written with the prompt. The bandit picks
the number with the best measured gain per cost. One request in 32 tries a neighbouring number.
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
#: one request of so many tries a neighbouring option
_EXPLORE = 32


@dataclass(slots=True)
class _Option:
    """One number of MRP forwards. `kept`: additional steps by its trees. `promised`: the steps that were guessed."""

    guess: float
    kept: float = 0.0
    promised: float = 0.0

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
        steps = list(self._options) if costs.mrp else [0]
        overall = self._overall()
        rates = {option: self._rate(option, overall, costs, (running, most)) for option in steps}
        place = steps.index(max(steps, key=lambda option: rates[option]))
        plain = running / costs.backbone.at(running)
        turn, explores = divmod(self._requests + 1, _EXPLORE)
        if explores == 0 and rates[steps[place]] > plain:
            place += 1 if (turn % 2 or place == 0) and place + 1 < len(steps) else -1
        return steps[max(0, place)]

    def count(self) -> None:
        """Counts a request that uses an option."""
        self._requests += 1

    def learn(self, steps: int, promises: Sequence[tuple[float, int]]) -> None:
        """Learns from the states of one verification, of a request with `steps` MRP forwards."""
        if promises:
            self._options[steps].learn(len(promises), sum(kept > 0 for _, kept in promises))

    def _overall(self) -> float:
        """The ratio of kept to guessed steps over all options."""
        known = self._options.values()
        return (_WEIGHT + sum(one.kept for one in known)) / (_WEIGHT + sum(one.promised for one in known))

    def _rate(self, option: int, overall: float, costs: StepCosts, load: tuple[int, int]) -> float:
        """Steps per time with the best size of tree, if all running requests used this option.

        `load`: the number of running requests, and the most states of each. A new option's guess is corrected by the
        ratio over all options.
        """
        running, most = load
        own = self._options[option]
        gain = own.guess * (overall * _WEIGHT + own.kept) / (_WEIGHT + own.promised)
        refining = option * costs.mrp.at(running) if costs.mrp else 0.0
        rates = [running / (costs.backbone.at(running) + refining)]
        for states in _SIZES:
            if states <= most:
                seconds = costs.backbone.at(running * (1 + states)) + running * states * costs.draft + refining
                rates.append(running * (1 + gain * log2(1 + states)) / seconds)
        return max(rates)
