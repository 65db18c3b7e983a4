"""Token ids in, text out, until a stop text is found. Knows no requests and no engine."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from service.text.incremental import IncrementalDecoder
from service.text.stops import StopTexts


class TextStream:
    """Token ids in, text out: never half a character, never a part of a stop text.

    `stopped` is set once a stop text is found; what follows is ignored. The pieces together are the whole answer's text
    up to the stop text that is complete first, of several the longest.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._stops = StopTexts(stop)
        self._decoder = IncrementalDecoder(tokenizer)
        self._held = ""
        self.stopped = False

    def push(self, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """The text that is certain after these ids, and how many of them belong to the answer (the ids)."""
        ready = ""
        for count, token in enumerate(ids):
            if self.stopped:
                return ready, tuple(ids[:count])
            ready += self._add(self._decoder.step(token))
        return ready, tuple(ids)

    def finish(self) -> str:
        """What was held back, at the end of the answer."""
        if self.stopped:
            return ""
        return self._add(self._decoder.rest()) + self._flush()

    def _add(self, piece: str) -> str:
        held = self._held + piece
        for count, letter in enumerate(piece, len(self._held) + 1):
            if length := self._stops.take(letter):
                self.stopped, self._held = True, ""
                return held[: count - length]
        certain = len(held) - self._stops.pending
        self._held = held[certain:]
        return held[:certain]

    def _flush(self) -> str:
        ready, self._held = self._held, ""
        return ready
