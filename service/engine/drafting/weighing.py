"""Which drafts a forward reads: those of all its requests are weighed together. `pricing.py` knows gains and prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from operator import itemgetter


def worth_reading(offers: Sequence[Sequence[float]], prices: Sequence[float]) -> list[int]:
    """How many states of each offer to read: those that bring the most tokens beyond what their rows cost.

    An offer: the gains of a request's states, in their order. `prices`: of no more rows, of one, two, … and at least
    as many as there are states, in tokens. States of the highest gain come first.
    """
    drafts = list[tuple[float, float, int]]()
    for place, gains in enumerate(offers):
        least = inf
        for gain in gains:
            least = min(least, gain)  # a state that gains more than one before it comes right after that one
            drafts.append((-least, gain, place))
    drafts.sort(key=itemgetter(0))
    total, best, most = 0.0, 0.0, 0
    for count, (_, gain, _) in enumerate(drafts, 1):
        total += gain
        if total - prices[count] > best:
            best, most = total - prices[count], count
    counts = Counter([place for _, _, place in drafts[:most]])
    return [counts[place] for place in range(len(offers))]
