"""The gap between a position's two likeliest tokens. A plan that uses it has `likeliest` 2 at least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from service.decode.block import Pick


def logit_gap(pick: Pick) -> float:
    """The likeliest token's logit less the second one's."""
    (_, first), (_, second), *_ = pick.logprobs.top
    return first - second


def probability_gap(pick: Pick) -> float:
    """The likeliest token's probability less the second one's."""
    (_, first), (_, second), *_ = pick.logprobs.top
    return math.exp(first) - math.exp(second)


def mean_logit_gap(picks: Sequence[Pick]) -> float:
    """Over the masked positions of a block."""
    return fmean(map(logit_gap, picks))
