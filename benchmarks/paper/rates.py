"""Tokens a second in pieces, and the ratio of two rates with its interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from service.quality.calibration.records import Estimate, Z


@dataclass(frozen=True, slots=True)
class Pieces:
    """Two or more amounts, and the seconds that each took."""

    amounts: Sequence[float]
    seconds: Sequence[float]

    @property
    def rate(self) -> float:
        return sum(self.amounts) / sum(self.seconds)

    def without(self, piece: int) -> float:
        amount, time = sum(self.amounts), sum(self.seconds)
        return (amount - self.amounts[piece]) / (time - self.seconds[piece])


def ratio_of_rates(pieces: Pieces, base: Pieces) -> Estimate:
    """The ratio of two rates on the same pieces, with the jackknife's interval."""
    value, count = pieces.rate / base.rate, len(pieces.amounts)
    ratios = [pieces.without(piece) / base.without(piece) for piece in range(count)]
    mean = sum(ratios) / count
    half = Z * math.sqrt((count - 1) / count * sum((ratio - mean) ** 2 for ratio in ratios))
    return Estimate(value, max(0.0, value - half), value + half)
