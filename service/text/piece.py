"""One token of an answer as data that crosses from a replica to the ingress."""

from __future__ import annotations

from service.data import Data, Private


class Likely(Data, frozen=True):
    """A token that might stand at a place. `logprob`: its natural logarithm; the others as in `TokenPiece`."""

    token: int
    text: Private[str]
    data: Private[bytes | None]
    logprob: float


class TokenPiece(Data, frozen=True):
    """One token of an answer.

    `text`: the token's own text, or `token_id:N` if it is not a whole character. `data`: its bytes, None if unknown.
    `added`: what it adds to the answer's text. `likeliest`: the likeliest tokens at its place, if they are asked for.
    """

    text: Private[str]
    data: Private[bytes | None]
    added: Private[str]
    likeliest: Private[tuple[Likely, ...]] = ()
