"""The bands of load of a preset: its plan at each number of requests at a replica.

A calibration chooses a plan at each measured load. Neighbouring loads meet at their geometric mean, since the price of
a request follows the ratio of loads. Bands of one plan are one band.
"""

import math
from collections.abc import Sequence
from itertools import groupby, pairwise

from service.quality.schema import Band, Plan

#: a band is left when the load is over its upper bound times this, or under its lower bound divided by it
_PLAY = 1.25


def bands_of(chosen: Sequence[tuple[int, Plan]]) -> list[Band]:
    """The bands of plans that were chosen at ascending loads, at least one."""
    runs = [[load for load, _ in run] for _, run in groupby(chosen, key=lambda pair: pair[1].name)]
    ends = [*(round(math.sqrt(run[-1] * after[0]), 2) for run, after in pairwise(runs)), None]
    plans = dict(chosen)
    return [Band(**plans[run[0]].model_dump(), up_to=end) for run, end in zip(runs, ends, strict=True)]


def at_load(bands: Sequence[Band], load: float) -> Plan:
    """The plan for a load, in requests at a replica."""
    return next(band.plan for band in bands if band.up_to is None or load <= band.up_to)


def in_words(bands: Sequence[Band]) -> str:
    """Such as `static up to 2.83 requests, dynamic threshold=0.5 above`; one plan stands alone."""
    *bounded, last = bands
    words = [f"{band.plan.name} up to {band.up_to:g} requests" for band in bounded]
    return ", ".join([*words, f"{last.plan.name} above" if bounded else last.plan.name])


class LoadHysteresis:
    """The load as presets see it: a play (backlash) operator, so plans do not alternate around a bound."""

    _value: float | None = None

    def follow(self, load: float) -> float:
        """The steady load after `load`, in requests at a replica. The first load is taken as it is."""
        before = load if self._value is None else self._value
        self._value = min(max(before, load / _PLAY), load * _PLAY)
        return self._value
