"""Names each token of an answer: its text, its bytes, and what it adds to the answer's text.

Log-probabilities need these names. A token that is not a whole character has no text. Its bytes are read from the
vocabulary, in the forms of byte-level and byte-fallback tokenizers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from msgspec.structs import replace
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from service.text.incremental import IncrementalDecoder
from service.text.piece import Likely, TokenPiece

_BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}
_BROKEN: Final = "\ufffd"

#: tokens with the natural logarithms of their probabilities
Scores = Sequence[tuple[int, float]]

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


class TokenPieces:
    """The pieces of one answer, as its tokens come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = IncrementalDecoder(tokenizer)
        self._control = {id_ for id_, added in tokenizer.get_added_tokens_decoder().items() if added.special}
        self._within = False
        self._before: int | None = None

    def push(self, token_ids: Sequence[int], likeliest: Sequence[Scores] = ()) -> tuple[TokenPiece, ...]:
        """The pieces of the next tokens. `likeliest`: for each, the likeliest tokens at its place and their logs."""
        return tuple(
            self._piece(token, scores) for token, scores in zip_longest(token_ids, likeliest[: len(token_ids)])
        )

    def _piece(self, token: int, scores: Scores | None) -> TokenPiece:
        if not scores:
            return self._next(token)
        before, piece = self._before, self._next(token)
        likely = (
            Likely(other, piece.text, piece.data, logprob)
            if other == token
            else Likely(other, *self.name(other, before), logprob)
            for other, logprob in scores
        )
        return replace(piece, likeliest=tuple(likely))

    def name(self, token: int, before: int | None = None) -> tuple[str, bytes | None]:
        """What a token would be called after the token `before`: its text, or `token_id:N`; and its bytes."""
        if token in self._control:
            return self._tokenizer.id_to_token(token) or "", None
        lead = [] if before is None or before in self._control else [before]
        start = self._tokenizer.decode(lead, skip_special_tokens=True)
        text = self._tokenizer.decode([*lead, token], skip_special_tokens=True)
        if not text.startswith(start) or _BROKEN in start or _BROKEN in text or text == start:
            return f"token_id:{token}", self._bytes(token)
        added = text[len(start) :]
        return added, added.encode()

    def _next(self, token: int) -> TokenPiece:
        self._before = token
        added = self._decoder.step(token)
        if token in self._control:
            return TokenPiece(self._tokenizer.id_to_token(token) or "", None, added)
        whole = not self._within and added != ""
        self._within = added == ""
        if whole:
            return TokenPiece(added, added.encode(), added)
        return TokenPiece(f"token_id:{token}", self._bytes(token), added)

    def _bytes(self, token: int) -> bytes | None:
        written = self._tokenizer.id_to_token(token) or ""
        if fallback := _FALLBACK.fullmatch(written):
            return bytes([int(fallback[1], 16)])
        if written and all(letter in _BYTES for letter in written):
            return bytes(_BYTES[letter] for letter in written)
        return None
