"""Log-probabilities of an answer's tokens, read off the trace of its blocks.

A token's is that of the step that fixed it, at the request's temperature: the backbone's, but MRP's for what
MRP itself revealed (mode `direct`). Tokens have the names and bytes that the replica gives them: their text, or
`token_id:17` for what is no whole character. Knows no HTTP.
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
    """A token of the answer, its log-probability, its bytes, and where in the answer's text it begins."""

    token: str
    logprob: float
    data: bytes | None
    offset: int


def token_logprobs(
    pieces: Sequence[TokenPiece], trace: Iterable[Mapping[str, Any]], offset: int = 0
) -> list[TokenLogprob]:
    """Of the tokens that one or more whole blocks, with this trace, added to the answer from `offset` on."""
    blocks: dict[int, dict[int, tuple[int, float]]] = {}
    for step in trace:
        block = blocks.setdefault(step["block"], {})
        for position, token, confidence in step["revealed"]:
            block[position] = (token, confidence)
    # What was revoked is revealed again later, or lies behind the answer's end, as other positions may.
    fixed = [block[position] for _, block in sorted(blocks.items()) for position in sorted(block)]
    offsets = accumulate((len(piece.added) for piece in pieces), initial=offset)
    return [
        TokenLogprob(piece.text, _log(confidence), piece.data, start)
        for piece, (_, confidence), start in zip(pieces, fixed, offsets, strict=False)
    ]


def _log(confidence: float) -> float:
    return min(0.0, math.log(confidence)) if confidence > 0 else _LEAST
