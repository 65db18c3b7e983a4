"""Names each token of an answer: its text, its bytes, and what it adds to the answer's text.

Log-probabilities need these names. A token that is not a whole character has no text. Its bytes are read from the
vocabulary, in the forms of byte-level and byte-fallback tokenizers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from service.text.incremental import IncrementalDecoder
from service.text.piece import TokenPiece

_BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}
_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


class TokenPieces:
    """The pieces of one answer, as its tokens come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = IncrementalDecoder(tokenizer)
        self._control = {id_ for id_, added in tokenizer.get_added_tokens_decoder().items() if added.special}
        self._within = False

    def push(self, token_ids: Sequence[int]) -> tuple[TokenPiece, ...]:
        """The pieces of the next tokens."""
        return tuple(self._piece(token) for token in token_ids)

    def _piece(self, token: int) -> TokenPiece:
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
