"""Finds the first of several stop texts in a text that comes in pieces.

The time grows only with the text. Each stop text has its own automaton (Knuth, Morris, Pratt). The automaton's table
says how much of a stop text still matches after a mismatch. A table grows only as far as its stop text has matched,
so a stop text of a megabyte costs nothing before it matches.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Matches all stop texts, none of them empty. `take` gets one letter after the other."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._matches = [_Match(text) for text in texts]

    @property
    def pending(self) -> int:
        """The number of last letters that may be the beginning of a stop text."""
        return max((match.length for match in self._matches), default=0)

    def take(self, letter: str) -> int:
        """Takes the next letter. Returns the length of the longest stop text that it completes, 0 for none."""
        return max((match.take(letter) for match in self._matches), default=0)


class _Match:
    """One stop text. `length`: how many of its first letters the last letters match."""

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
        """The length of the longest shorter beginning of the text that its first `length` letters end with."""
        while len(self._table) < length:
            at = len(self._table)
            shorter = self._table[at - 1]
            while shorter and self._text[at] != self._text[shorter]:
                shorter = self._table[shorter - 1]
            self._table.append(shorter + (self._text[at] == self._text[shorter]))
        return self._table[length - 1]
