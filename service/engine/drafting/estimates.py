"""Estimates from earlier drafts: the actual gain behind an expected one, and the gain of a number of MRP forwards.

A policy's likelihoods were tuned on one checkpoint. `Reliability` counts the actual gain of drafts by their expected
gain. `MrpChoice` is a small bandit over the number of MRP forwards for a request's drafts, chosen once, when it is
admitted. One request in 32 tries a neighbouring number, if a much higher gain would make that number the best.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2

from service.engine.drafting.costs import StepCosts

#: bounds of the classes of expected gains, in tokens; fine near 1: under full load only such drafts are verified
_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, 2.0)
#: weight, in drafts, of the assumption that gains are as expected; the number of drafts after which counts are halved
_WEIGHT, _MEMORY = 10.0, 4000.0
#: Tree positions are counted in three classes: (first position, the share of expected gains assumed at first, measured
#: on the demo). Later states are chosen from more candidates, so they are overestimated more.
_POSITIONS = ((0, 1.0), (1, 0.8), (4, 0.55))

#: the assumed gain of a search in tokens, its weight in searches, and the searches after which counts are halved
_SEARCH_GAIN, _SEARCH_WEIGHT, _SEARCH_MEMORY = 0.3, 32.0, 1024.0

#: The gain of the demo's trees of 4 to 16 states (dev/lab/performance-log.md): _GAIN * log2(1 + states) more steps
#: per forward, times the factor for the number of MRP forwards in blocks of 8. In smaller blocks and in trees of fewer
#: states than `_SMALL` MRP gains less: one MRP forward gains 10, 20 and 29 % in blocks of 4, 8 and 16.
_GAIN, _SMALL = 0.45, 4
_WITH_MRP = {0: 1.0, 1: 1.2, 2: 1.35, 4: 1.4}
#: the sizes of trees that are compared
_SIZES = (1, 2, 4, 8, 16)
#: the share of the allowed MRP forwards that a search is assumed to take at first
REFINED_SHARE = 0.6
#: weight of a guess in steps, and the number of steps after which all counts are halved
_GUESS_WEIGHT, _STEPS_MEMORY = 100.0, 10_000.0
#: the requests per trial of a neighbouring option, and the factor of its gain with which it must be the best option
_EXPLORE, _HOPE = 32, 1.5


class SearchGains:
    """The tokens that searches for drafts of one kind gained beyond the costs of their drafts, at each load."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[float, float]] = {}  # searches and tokens, by the bits of the load

    def are_worth(self, num_running: int, cost: float) -> bool:
        count, gained = self._counted(num_running)
        return gained > count * cost

    def count(self, num_running: int, gain: float) -> None:
        count, gained = self._counted(num_running)
        share = 0.5 if count > _SEARCH_MEMORY else 1.0
        self._counts[num_running.bit_length()] = share * count + 1.0, share * gained + gain

    def _counted(self, num_running: int) -> tuple[float, float]:
        return self._counts.get(num_running.bit_length(), (_SEARCH_WEIGHT, _SEARCH_WEIGHT * _SEARCH_GAIN))


class Reliability:
    """The counts of drafts of one kind, by their position in the tree. `searches`: the gains of their searches."""

    def __init__(self) -> None:
        self.searches = SearchGains()
        self._classes = [(begin, _PositionClass(share)) for begin, share in reversed(_POSITIONS)]

    def count(self, gains: Sequence[tuple[float, int]]) -> None:
        """Counts the drafts of one tree: (expected, actual) tokens gained by each."""
        for begin, positions in self._classes:  # from the last ones on
            if len(gains) > begin:
                positions.count(gains[begin:])
                gains = gains[:begin]

    def actual_gains(self, expected: Sequence[float]) -> list[float]:
        gains = list[float]()
        for begin, positions in self._classes:  # from the last ones on
            if len(expected) > begin:
                gains[:0] = map(positions.gain, expected[begin:])
                expected = expected[:begin]
        return gains

    def min_gain(self, price: float) -> float:
        return self._classes[-1][1].min_gain(price)


class _PositionClass:
    """Counts at some tree positions, by class of expected gain: drafts, tokens expected, tokens gained."""

    def __init__(self, share: float) -> None:
        middles = [(low + high) / 2 for low, high in pairwise((0.0, *_BOUNDS, 4.0))]
        self._counts = [(_WEIGHT, _WEIGHT * middle, _WEIGHT * middle * share) for middle in middles]
        self._points = [(middle, middle * share) for middle in middles]  # mean expected and mean actual gain

    def count(self, gains: Iterable[tuple[float, int]]) -> None:
        for expected, actual in gains:
            index = bisect_right(_BOUNDS, expected)
            count, total, gained = self._counts[index]
            count, total, gained = count + 1.0, total + expected, gained + actual
            share = 0.5 if count > _MEMORY else 1.0
            self._counts[index] = share * count, share * total, share * gained
            self._points[index] = total / count, gained / count

    def gain(self, expected: float) -> float:
        points = self._points
        index = min(bisect_right(points, (expected, 0.0)), len(points) - 1)
        (low, less), (high, more) = points[index - 1] if index else (0.0, 0.0), points[index]
        return less + (more - less) * (expected - low) / (high - low)

    def min_gain(self, price: float) -> float:
        points = self._points
        above = points[-1]
        if above[1] < price:
            return max(price, above[0])
        for below in [*reversed(points[:-1]), (0.0, 0.0)]:
            if below[1] < price:
                share = (price - below[1]) / (above[1] - below[1])
                return below[0] + share * (above[0] - below[0])
            above = below
        return 0.0


@dataclass(slots=True)
class MrpOption:
    """One number of MRP forwards, `steps`. `factor`: its gain over trees without MRP, for large trees.

    `gained`, `guessed`: the additional steps by its trees, and their guess. `refinements`: the MRP forwards of
    `searches`.
    """

    steps: int
    factor: float
    refinements: float
    searches: float = _GUESS_WEIGHT
    gained: float = 0.0
    guessed: float = 0.0

    def guess(self, states: int) -> float:
        size = log2(1 + states)
        return _GAIN * size * (1.0 + (self.factor - 1.0) * min(1.0, size / log2(1 + _SMALL)))

    def ratio(self, overall: float) -> float:
        return (overall * _GUESS_WEIGHT + self.gained) / (_GUESS_WEIGHT + self.guessed)

    def forwards(self, num_running: int) -> float:
        """The mean number of MRP forwards of a step. Requests share them, and one request suffices for a forward."""
        share = min(1.0, self.refinements / self.searches / max(1, self.steps))
        return self.steps * (1.0 - (1.0 - share) ** num_running)

    def count_search(self, refinements: int) -> None:
        """Counts a search for drafts, of a request that allows `steps` MRP forwards. `refinements`: those it took."""
        self.searches, self.refinements = self.searches + 1, self.refinements + refinements
        if self.searches > _STEPS_MEMORY:
            self.searches, self.refinements = self.searches / 2, self.refinements / 2

    def count(self, gains: Sequence[tuple[float, int]]) -> None:
        self.guessed += self.guess(len(gains))
        self.gained += sum(actual > 0 for _, actual in gains)
        if self.guessed > _STEPS_MEMORY:
            self.gained, self.guessed = self.gained / 2, self.guessed / 2


class MrpChoice:
    """The options, with their measured gains."""

    def __init__(self, block_size: int = 8) -> None:
        share, scale = _GUESS_WEIGHT * REFINED_SHARE, max(0.0, log2(block_size) - 1.0) / 2.0
        self._options = {
            steps: MrpOption(steps, 1.0 + scale * (factor - 1.0), share * steps) for steps, factor in _WITH_MRP.items()
        }
        self._requests = 0

    def best(self, costs: StepCosts, num_running: int, max_states: int) -> int:
        """The number of MRP forwards for a request. `max_states`: the limit of a request's verified states."""
        steps, load = list(self._options) if costs.mrp else [0], (num_running, max_states)
        guessed = sum(option.guessed for option in self._options.values())
        overall = (_GUESS_WEIGHT + sum(option.gained for option in self._options.values())) / (_GUESS_WEIGHT + guessed)
        ratios = {option: self._options[option].ratio(overall) for option in steps}
        rates = {option: _rate(self._options[option], ratios[option], costs, load) for option in steps}
        best = max(steps, key=lambda option: rates[option])
        trial, remainder = divmod(self._requests + 1, _EXPLORE)
        if remainder == 0 and rates[best] > num_running / costs.backbone.filled(num_running):
            index = steps.index(best)
            near = steps[max(0, index + (1 if (trial % 2 or index == 0) and index + 1 < len(steps) else -1))]
            if _rate(self._options[near], _HOPE * ratios[near], costs, load) > rates[best]:
                return near
        return best

    def take(self, steps: int) -> MrpOption:
        """The option of a request that starts."""
        self._requests += 1
        return self._options[steps]


def _rate(option: MrpOption, ratio: float, costs: StepCosts, load: tuple[int, int]) -> float:
    """Steps per time with the best size of tree, if all running requests used this option.

    `ratio`: the ratio of gained to guessed steps. `load`: the number of running requests, and the most states of each.
    """
    num_running, max_states = load
    refining = option.forwards(num_running) * costs.mrp.filled(num_running) if costs.mrp else 0.0
    rates = [num_running / (costs.backbone.filled(num_running) + refining)]
    for states in _SIZES:
        if states <= max_states:
            seconds = costs.backbone.filled(num_running * (1 + states)) + num_running * states * costs.draft + refining
            rates.append(num_running * (1 + ratio * option.guess(states)) / seconds)
    return max(rates)
