"""The reliability of drafts: the gain behind an estimated one, and the estimate that is needed for a given price.

A policy's likelihoods are a model that was tuned on one checkpoint. On another checkpoint, or at a temperature, they
may be too high. This module counts the actual gain of drafts by their estimated gain (their promise).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

#: bounds of the classes of promises, in tokens; fine near 1, since under full load only such drafts are verified
_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, 2.0)
#: weight, in drafts, of the assumption that promises are kept; and the number of drafts after which counts are halved
_WEIGHT, _MEMORY = 10.0, 4000.0
#: The places in a tree that are counted apart begin here, each with the share of its promises that is assumed at first
#: (the demo's). Later states are chosen from more, so they are overestimated more.
_PLACES = ((0, 1.0), (1, 0.8), (4, 0.55))


class Reliability:
    """The counts of drafts of one kind, by their place in the tree."""

    def __init__(self) -> None:
        self._places = [(begin, _Place(share)) for begin, share in reversed(_PLACES)]

    def learn(self, promises: Sequence[tuple[float, int]]) -> None:
        """Counts the drafts of one tree, each with its promised and its kept tokens."""
        for begin, place in self._places:  # from the last ones on
            if len(promises) > begin:
                place.learn(promises[begin:])
                promises = promises[:begin]

    def gains(self, promises: Sequence[float]) -> list[float]:
        """The mean actual gains of drafts that promise so much, in the order of a tree."""
        found = list[float]()
        for begin, place in self._places:  # from the last ones on
            if len(promises) > begin:
                found[:0] = map(place.gain, promises[begin:])
                promises = promises[:begin]
        return found

    def least(self, price: float) -> float:
        """The least promise of a first draft whose actual gain covers the price."""
        return self._places[-1][1].least(price)


class _Place:
    """The counts at some places, by class of promise: the number of drafts, and tokens promised and kept."""

    def __init__(self, share: float) -> None:
        middles = [(low + high) / 2 for low, high in pairwise((0.0, *_BOUNDS, 4.0))]
        self._classes = [[_WEIGHT, _WEIGHT * middle, _WEIGHT * middle * share] for middle in middles]
        self._least: tuple[float, float] | None = None
        self._points: list[tuple[float, float]] = []

    def learn(self, promises: Iterable[tuple[float, int]]) -> None:
        for promised, kept in promises:
            self._least, self._points = None, []
            entry = self._classes[bisect_right(_BOUNDS, promised)]
            for place, value in enumerate((1.0, promised, kept)):
                entry[place] += value
            if entry[0] > _MEMORY:
                entry[:] = [value / 2 for value in entry]

    def gain(self, promise: float) -> float:
        """Between the means of the classes on a straight line."""
        points = self._means()
        place = min(bisect_right(points, (promise, 0.0)), len(points) - 1)
        (low, less), (high, more) = points[place - 1] if place else (0.0, 0.0), points[place]
        return less + (more - less) * (promise - low) / (high - low)

    def least(self, price: float) -> float:
        if self._least is None or self._least[0] != price:
            self._least = price, self._find(price)
        return self._least[1]

    def _means(self) -> list[tuple[float, float]]:
        """The mean promised and the mean kept tokens of each class."""
        self._points = self._points or [(promised / count, kept / count) for count, promised, kept in self._classes]
        return self._points

    def _find(self, price: float) -> float:
        points = self._means()
        above = points[-1]
        if above[1] < price:
            return max(price, above[0])
        for below in [*reversed(points[:-1]), (0.0, 0.0)]:
            if below[1] < price:
                share = (price - below[1]) / (above[1] - below[1])
                return below[0] + share * (above[0] - below[0])
            above = below
        return 0.0
