"""Decodes token ids to text until a stop text is found."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from service.text.incremental import IncrementalDecoder
from service.text.stops import StopTexts


class TextStream:
    """Decodes the token ids of one answer. Never returns a part of a character or of a stop text.

    `stopped_by`: the stop text, once one is found; later ids are ignored. The returned pieces together are the
    answer's text up to the first complete stop text. If several are complete at once, the longest one counts.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._stops = StopTexts(stop) if stop else None
        self._decoder = IncrementalDecoder(tokenizer)
        self._held = ""
        self.stopped_by: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop text is found."""
        return self.stopped_by is not None

    def push(self, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """The text that is certain after these ids, and the ids among them that belong to the answer."""
        ready = ""
        for count, token in enumerate(ids):
            if self.stopped:
                return ready, tuple(ids[:count])
            ready += self._add(self._decoder.step(token))
        return ready, tuple(ids)

    def finish(self) -> str:
        """The text held back so far. Called at the end of the answer."""
        if self.stopped:
            return ""
        return self._add(self._decoder.rest()) + self._flush()

    def _add(self, piece: str) -> str:
        if self._stops is None:
            return piece
        held = self._held + piece
        for count, letter in enumerate(piece, len(self._held) + 1):
            if length := self._stops.take(letter):
                self.stopped_by, self._held = held[count - length : count], ""
                return held[: count - length]
        certain = len(held) - self._stops.pending
        self._held = held[certain:]
        return held[:certain]

    def _flush(self) -> str:
        ready, self._held = self._held, ""
        return ready
