"""The reliability of drafts: the estimated gain that is needed for a given price.

A policy's likelihoods are a model that was tuned on one checkpoint. On another checkpoint, or at a temperature, they
may be too high. This module counts the actual gain of drafts by their estimated gain (their promise).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

#: bounds of the classes of promises, in tokens; fine near 1, since under full load only such drafts are verified
_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, 2.0)
#: weight, in drafts, of the assumption that promises are kept; and the number of drafts after which counts are halved
_WEIGHT, _MEMORY = 10.0, 4000.0


class Reliability:
    """The counts of drafts of one kind, by class of promise: their number, and tokens promised and kept."""

    def __init__(self) -> None:
        middles = [(low + high) / 2 for low, high in pairwise((0.0, *_BOUNDS, 4.0))]
        self._least: tuple[float, float] | None = None
        self._classes = [[_WEIGHT, _WEIGHT * middle, _WEIGHT * middle] for middle in middles]

    def learn(self, promises: Iterable[tuple[float, int]]) -> None:
        """Counts drafts, each with its promised and its kept tokens."""
        for promised, kept in promises:
            self._least = None
            entry = self._classes[bisect_right(_BOUNDS, promised)]
            for place, value in enumerate((1.0, promised, kept)):
                entry[place] += value
            if entry[0] > _MEMORY:
                entry[:] = [value / 2 for value in entry]

    def least(self, price: float) -> float:
        """The least promise whose actual gain covers the price."""
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
