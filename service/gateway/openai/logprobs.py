"""Log-probabilities of an answer's tokens, read from the trace of its blocks.

A token's log-probability is that of the step that fixed it, at the request's temperature. It is the backbone's, or
MRP's if MRP revealed the token (mode `direct`). The replica names every token: by its text, or as `token_id:17` if
the token is not a whole character.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from service.text.piece import TokenPiece

#: OpenAI's number for "very unlikely"
_LEAST = -9999.0


class TokenLogprob(NamedTuple):
    """A token of the answer, its log-probability and bytes. `offset`: where it begins in the answer's text."""

    token: str
    logprob: float
    data: bytes | None
    offset: int


def token_logprobs(
    pieces: Sequence[TokenPiece], trace: Iterable[Mapping[str, Any]], offset: int = 0
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
    # A revoked position is revealed again later, or lies behind the answer's end. `zip` drops what lies behind it.
    fixed = [block[position] for _, block in sorted(blocks.items()) for position in sorted(block)]
    offsets = accumulate((len(piece.added) for piece in pieces), initial=offset)
    return [
        TokenLogprob(piece.text, _log(confidence), piece.data, start)
        for piece, (_, confidence), start in zip(pieces, fixed, offsets, strict=False)
    ]


def _log(confidence: float) -> float:
    return min(0.0, math.log(confidence)) if confidence > 0 else _LEAST
