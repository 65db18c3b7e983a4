"""Log-probabilities of an answer's tokens, read from its step map.

A token has the log-probability of the step that fixed it, at the request's temperature. It is the backbone's, or MRP's
if MRP revealed the token (mode `direct`). The likeliest tokens come from the same step. The replica names every token:
by its text, or as `token_id:17` if the token is not a whole character.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from service.messages.wire import Answer, Chunk
from service.text.token_text import TopLogprob


class TokenLogprob(NamedTuple):
    """A token of the answer, its log-probability and bytes. `offset`: where it begins in the answer's text.

    `likeliest`: the likeliest tokens at its place, by the same step.
    """

    token: str
    logprob: float
    data: bytes | None
    offset: int
    likeliest: tuple[TopLogprob, ...] = ()


def token_logprobs(part: Answer | Chunk, offset: int = 0) -> list[TokenLogprob]:
    """The log-probabilities of the tokens of an answer or of a part. `offset`: where its text begins in the answer."""
    offsets = accumulate((len(piece.delta) for piece in part.pieces), initial=offset)
    return [
        TokenLogprob(piece.text, token.logprob, piece.data, start, piece.top_logprobs)
        for piece, token, start in zip(part.pieces, part.step_map, offsets, strict=False)
    ]
