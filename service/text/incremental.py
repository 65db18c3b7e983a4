"""Decodes token ids one at a time, and returns text as soon as it consists of whole characters.

It uses tokenizers' DecodeStream and handles the case where that raises. With byte-fallback vocabularies, a byte that
belongs to no character changes the text of earlier bytes, which is already returned.
"""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class IncrementalDecoder:
    """Decodes one answer. Control tokens have no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._length = 0

    def step(self, token: int) -> str:
        """The text that this token completes. Empty within a character."""
        self._ids.append(token)
        try:
            text = self._stream.step(self._tokenizer, token) or ""
        except Exception:  # noqa: BLE001 - the library raises nothing narrower
            self._stream = DecodeStream(self._ids, skip_special_tokens=True)
            text = self._beyond()
        self._length += len(text)
        return text

    def rest(self) -> str:
        """The text held back so far. Called at the end of the answer."""
        return self._beyond()

    def _beyond(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special_tokens=True)[self._length :]
