"""Predictions made of picks."""

from collections.abc import Iterable, Sequence
from math import log
from typing import Any

from msgspec.structs import astuple

from service.decode.block import Pick, PositionLogprobs
from service.decode.policy import Prediction


def prediction_of(
    picks: Iterable[Pick], rescored: tuple[Pick, ...] = (), handle: Any = None, entropies: Sequence[float] = ()
) -> Prediction:
    """A prediction with these picks for the masked positions, ascending, and their entropies."""
    positions, tokens, confidences, logprobs, token_logprobs = (
        tuple(zip(*map(astuple, picks), strict=True)) or ((),) * 5
    )
    logprob_column = () if None in token_logprobs else token_logprobs
    return Prediction(positions, tokens, confidences, rescored, handle, entropies, logprobs, logprob_column)


def likeliest(*pairs: tuple[int, float]) -> PositionLogprobs:
    """The top tokens of a position, by their probabilities at temperature 0 or 1."""
    logprobs = tuple((token, log(probability)) for token, probability in pairs)
    return PositionLogprobs(logprobs, confidences=tuple(probability for _, probability in pairs))
