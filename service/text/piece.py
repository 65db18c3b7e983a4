"""One token of an answer as data that crosses from a replica to the ingress."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """One token of an answer.

    `text`: the token's own text, or `token_id:N` if it is not a whole character. `data`: its bytes, None if unknown.
    `added`: what it adds to the answer's text.
    """

    text: str = field(repr=False)
    data: bytes | None = field(repr=False)
    added: str = field(repr=False)
