"""Finds the first of several stop texts in a text that comes in pieces, in a time that grows with the text alone.

Each stop text is matched by its own automaton (Knuth, Morris, Pratt: the table of a text says how much of it still
matches after a letter that does not). Tables grow only as far as the text has matched, so a stop text of a megabyte
costs nothing until an answer follows it.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """`take` letters until one of the texts, none of them empty, is complete."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._matches = [_Match(text) for text in texts]

    @property
    def pending(self) -> int:
        """How many of the last letters may be the beginning of a stop text."""
        return max((match.length for match in self._matches), default=0)

    def take(self, letter: str) -> int:
        """One more letter. The length of the stop text that it completes, of several the longest; 0 for none."""
        return max((match.take(letter) for match in self._matches), default=0)


class _Match:
    """One stop text. `length`: how many of its letters are the last ones taken."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._table = [0]
        self.length = 0

    def take(self, letter: str) -> int:
        """The text's length if it is complete now, else 0."""
        self.length = self._after(self.length, letter)
        return self.length if self.length == len(self._text) else 0

    def _after(self, length: int, letter: str) -> int:
        while length and self._text[length] != letter:
            length = self._shorter(length)
        return length + (self._text[length] == letter)

    def _shorter(self, length: int) -> int:
        """The longest shorter beginning of the text that the first `length` letters end with."""
        while len(self._table) < length:
            at = len(self._table)
            shorter = self._table[at - 1]
            while shorter and self._text[at] != self._text[shorter]:
                shorter = self._table[shorter - 1]
            self._table.append(shorter + (self._text[at] == self._text[shorter]))
        return self._table[length - 1]
