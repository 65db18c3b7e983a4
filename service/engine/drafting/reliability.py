"""What drafts promise and what they keep: which promise is worth a price.

A policy's likelihoods are a model of what comes next, tuned on one checkpoint; on another, or at a temperature, they
may promise too much. Here drafts are counted by what they promised. Knows numbers only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

#: bounds of the classes of promises, in tokens; sure ones are told apart finely, because full machines take only those
_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, 2.0)
#: drafts that weigh as much as the belief that promises are kept, and those after which older ones count half
_WEIGHT, _MEMORY = 10.0, 4000.0


class Reliability:
    """Drafts of one kind: by class of promise how many there were, and what they promised and kept, in tokens."""

    def __init__(self) -> None:
        middles = [(low + high) / 2 for low, high in pairwise((0.0, *_BOUNDS, 4.0))]
        self._least: tuple[float, float] | None = None
        self._classes = [[_WEIGHT, _WEIGHT * middle, _WEIGHT * middle] for middle in middles]

    def learn(self, promises: Iterable[tuple[float, int]]) -> None:
        """Drafts, each with the tokens it promised and those it kept."""
        for promised, kept in promises:
            self._least = None
            entry = self._classes[bisect_right(_BOUNDS, promised)]
            for place, value in enumerate((1.0, promised, kept)):
                entry[place] += value
            if entry[0] > _MEMORY:
                entry[:] = [value / 2 for value in entry]

    def least(self, price: float) -> float:
        """The promise from which on the price is kept."""
        if self._least is None or self._least[0] != price:
            self._least = price, self._find(price)
        return self._least[1]

    def _find(self, price: float) -> float:
        points = [(promised / count, kept / count) for count, promised, kept in self._classes]
        above = points[-1]
        if above[1] < price:
            return max(price, above[0])
        for below in [*reversed(points[:-1]), (0.0, 0.0)]:
            if below[1] < price:
                share = (price - below[1]) / (above[1] - below[1])
                return below[0] + share * (above[0] - below[0])
            above = below
        return 0.0
