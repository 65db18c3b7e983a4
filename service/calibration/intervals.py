"""95 % intervals for the counts of a calibration: shares, differences of paired answers, ratios of rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def share(count: int, of: int) -> Estimate:
    """The share `count` / `of`, with Wilson's interval."""
    value, weight = count / of, _Z * _Z / of
    middle = (value + weight / 2) / (1 + weight)
    half = _Z * math.sqrt(value * (1 - value) / of + weight / (4 * of)) / (1 + weight)
    return Estimate(value, max(0.0, min(value, middle - half)), min(1.0, max(value, middle + half)))


def paired_difference(gained: int, lost: int, of: int) -> Estimate:
    """The difference of two shares of the same `of` problems: (`gained` - `lost`) / `of`.

    Interval: Agresti and Min (2005). It adds half a problem to each of the four kinds of pairs.
    """
    more, less, total = gained + 0.5, lost + 0.5, of + 2
    middle = (more - less) / total
    half = _Z * math.sqrt(more + less - (more - less) ** 2 / total) / total
    value = (gained - lost) / of
    return Estimate(value, max(-1.0, min(value, middle - half)), min(1.0, max(value, middle + half)))


@dataclass(frozen=True, slots=True)
class Pieces:
    """Two or more amounts, and the seconds that each took."""

    amounts: Sequence[float]
    seconds: Sequence[float]

    @property
    def rate(self) -> float:
        """The rate of all pieces together."""
        return sum(self.amounts) / sum(self.seconds)

    def without(self, piece: int) -> float:
        """The rate of all pieces but one."""
        amount, time = sum(self.amounts), sum(self.seconds)
        return (amount - self.amounts[piece]) / (time - self.seconds[piece])


def ratio_of_rates(pieces: Pieces, others: Pieces) -> Estimate:
    """The ratio of two rates on the same pieces, with the jackknife's interval."""
    value, count = pieces.rate / others.rate, len(pieces.amounts)
    left = [pieces.without(piece) / others.without(piece) for piece in range(count)]
    mean = sum(left) / count
    half = _Z * math.sqrt((count - 1) / count * sum((each - mean) ** 2 for each in left))
    return Estimate(value, max(0.0, value - half), value + half)
