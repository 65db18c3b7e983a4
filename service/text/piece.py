"""One token of an answer as data, which crosses from a replica to the ingress. Imports no tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """One token of an answer. `text`: its own, or `token_id:N` if it is no whole character; `added`: what it adds.

    `data`: its bytes, where they are known.
    """

    text: str = field(repr=False)
    data: bytes | None = field(repr=False)
    added: str = field(repr=False)
