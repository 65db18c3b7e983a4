"""Finds the end of a JSON object in a text that comes in pieces, without reading its values."""

from __future__ import annotations

import re
from typing import Final

#: what changes the depth or begins a text; within a text what ends it, and what is escaped
_OUTSIDE: Final = re.compile(r'[{}\[\]"]')
_WITHIN: Final = re.compile(r'\\.?|"', re.DOTALL)


class JsonObject:
    """One object, from its brace on. `ended`: whether its last brace was there."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = self._escaped = False
        self.ended = False

    def take(self, text: str) -> int:
        """How much of the next text belongs to the object."""
        at = 0
        if self._escaped and text:
            at, self._escaped = 1, False
        while not self.ended and (found := (_WITHIN if self._in_text else _OUTSIDE).search(text, at)):
            at = found.end()
            self._meet(found[0])
        return at if self.ended else len(text)

    def _meet(self, found: str) -> None:
        if found == '"':
            self._in_text = not self._in_text
        elif self._in_text:
            self._escaped = found == "\\"  # the letter after it is in the next piece
        else:
            self._depth += 1 if found in "{[" else -1
            self.ended = self._depth <= 0
