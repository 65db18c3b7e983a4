"""Token ids in, text out, until a stop text is found. Knows no requests and no engine."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from service.text.incremental import IncrementalDecoder


class TextStream:
    """Token ids in, text out: never half a character, never a part of a stop text.

    `stopped` is set once a stop text is found; what follows is ignored. The pieces together are the
    whole answer's text up to the stop text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._stop = stop
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
        self._held += piece
        found = [position for text in self._stop if (position := self._held.find(text)) >= 0]
        if found:
            self.stopped = True
            ready, self._held = self._held[: min(found)], ""
            return ready
        keep = max((_overlap(self._held, text) for text in self._stop), default=0)
        ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return ready

    def _flush(self) -> str:
        ready, self._held = self._held, ""
        return ready


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
