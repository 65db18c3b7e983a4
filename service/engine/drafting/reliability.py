"""`Reliability`: the actual gain of drafts by their expected gain, from earlier drafts.

A policy's likelihoods were tuned on one checkpoint, so what they expect is corrected by what was gained.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

#: bounds of the classes of expected gains, in tokens; fine near 1: under full load only such drafts are verified
_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, 2.0)
#: weight, in drafts, of the assumption that gains are as expected; the number of drafts after which counts are halved
_WEIGHT, _MEMORY = 10.0, 4000.0
#: Tree positions are counted in three classes: (first position, the share of expected gains assumed at first, measured
#: on the demo). Later states are chosen from more candidates, so they are overestimated more.
_POSITIONS = ((0, 1.0), (1, 0.8), (4, 0.55))


class Reliability:
    """The counts of drafts of one kind, by their position in the tree."""

    def __init__(self) -> None:
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
