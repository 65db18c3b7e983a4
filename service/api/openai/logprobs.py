"""Log-probabilities of an answer's tokens, read off the trace of its blocks.

A token's is that of the step that fixed it, at the request's temperature: the backbone's, but MRP's for what
MRP itself revealed (mode `direct`). Tokens are named `token_id:17`: the ingress has no tokenizer, and many
tokens are no whole characters. Knows no HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

#: OpenAI's number for "very unlikely"
_LEAST = -9999.0


class TokenLogprob(NamedTuple):
    """A token of the answer and its log-probability."""

    token: str
    logprob: float


def token_logprobs(token_ids: Sequence[int], trace: Iterable[Mapping[str, Any]]) -> list[TokenLogprob]:
    """Of the tokens that one or more whole blocks, with this trace, added to the answer."""
    blocks: dict[int, dict[int, tuple[int, float]]] = {}
    for step in trace:
        block = blocks.setdefault(step["block"], {})
        for position, token, confidence in step["revealed"]:
            block[position] = (token, confidence)
    # What was revoked is revealed again later, or lies behind the answer's end, as other positions may.
    fixed = [block[position] for _, block in sorted(blocks.items()) for position in sorted(block)]
    return [_named(*pick) for pick in fixed[: len(token_ids)]]


def _named(token: int, confidence: float) -> TokenLogprob:
    return TokenLogprob(f"token_id:{token}", min(0.0, math.log(confidence)) if confidence > 0 else _LEAST)
