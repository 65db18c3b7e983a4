"""Log-probabilities of an answer's tokens, read from the trace of its blocks.

A token has the log-probability of the step that fixed it, at the request's temperature. It is the backbone's, or MRP's
if MRP revealed the token (mode `direct`). The likeliest tokens come from the same step. The replica names every token:
by its text, or as `token_id:17` if the token is not a whole character.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from service.text.token_text import TokenText, TopLogprob

#: OpenAI's number for "very unlikely"
_LEAST = -9999.0


class TokenLogprob(NamedTuple):
    """A token of the answer, its log-probability and bytes. `offset`: where it begins in the answer's text.

    `likeliest`: the likeliest tokens at its place, by the same step.
    """

    token: str
    logprob: float
    data: bytes | None
    offset: int
    likeliest: tuple[TopLogprob, ...] = ()


def token_logprobs(
    pieces: Sequence[TokenText], trace: Iterable[Mapping[str, Any]], offset: int = 0
) -> list[TokenLogprob]:
    """The log-probabilities of the tokens of one or more whole blocks.

    `pieces`: the tokens that the blocks added to the answer. `trace`: the steps of these blocks. `offset`: where the
    text of the blocks begins in the answer's text.
    """
    blocks: dict[int, dict[int, tuple[int, float]]] = {}
    for step in trace:
        block = blocks.setdefault(step["block"], {})
        for position, token, confidence in step["revealed"]:
            block[position] = (token, confidence)
    # A revoked position is revealed again later, or lies behind the answer's end. `zip` drops positions behind it.
    fixed = [block[position] for _, block in sorted(blocks.items()) for position in sorted(block)]
    offsets = accumulate((len(piece.delta) for piece in pieces), initial=offset)
    return [
        TokenLogprob(piece.text, _logprob(piece, *pick), piece.data, start, piece.top_logprobs)
        for piece, pick, start in zip(pieces, fixed, offsets, strict=False)
    ]


def _logprob(piece: TokenText, token: int, confidence: float) -> float:
    """The log-probability of the chosen token, if possible from the likeliest tokens: a confidence is rounded."""
    logprob = next((likely.logprob for likely in piece.top_logprobs if likely.token == token), None)
    if logprob is None:
        logprob = math.log(confidence) if confidence > 0 else _LEAST
    return min(0.0, logprob)
