"""Predictions made of picks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from service.decode.block import Pick
from service.decode.policy import Prediction


def prediction_of(
    picks: Iterable[Pick], rescored: tuple[Pick, ...] = (), handle: Any = None, entropies: Sequence[float] = ()
) -> Prediction:
    """A prediction with these picks for the masked positions, ascending, and their entropies."""
    positions, tokens, confidences, logprobs = tuple(zip(*picks, strict=True)) or ((), (), (), ())
    return Prediction(positions, tokens, confidences, rescored, handle, entropies, logprobs)
