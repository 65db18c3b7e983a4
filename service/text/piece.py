"""One token of an answer as data that crosses from a replica to the ingress."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Likely:
    """A token that might stand at a place. `logprob`: its natural logarithm; the others as in `TokenPiece`."""

    token: int
    text: str = field(repr=False)
    data: bytes | None = field(repr=False)
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """One token of an answer.

    `text`: the token's own text, or `token_id:N` if it is not a whole character. `data`: its bytes, None if unknown.
    `added`: what it adds to the answer's text. `likeliest`: the likeliest tokens at its place, if they are asked for.
    """

    text: str = field(repr=False)
    data: bytes | None = field(repr=False)
    added: str = field(repr=False)
    likeliest: tuple[Likely, ...] = field(default=(), repr=False)
