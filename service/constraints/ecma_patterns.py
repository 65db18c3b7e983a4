r"""Patterns of JSON Schema, which are ECMA-262's regular expressions, as Rust's, which llguidance reads.

A pattern is read as with the flag `u`. Where that is an error, it is read as without the flag: `\-`, a `{` that begins
no quantifier. The result means the same in both languages. None stands for a pattern that is wrong in both readings, or
that llguidance cannot follow: look-around, boundaries, back-references, anchors in the middle of a text.
"""

import re
from typing import Final

from service.constraints.ecma_characters import COMPLEMENTS, ESCAPE, SPECIAL, SURROGATES, literal, meaning, range_of

_LINE_ENDS: Final = "\\x0a\\x0d\u2028\u2029"
_ANY: Final = "\\x00-\U0010ffff"
#: the most groups within each other, and repetitions
_MAX_GROUPS, _MAX_REPETITIONS = 100, 1_000_000

#: characters that stand for themselves
_PLAIN: Final = re.compile(r"[^\\^$.*+?()\[\]{}|&~\x00-\x1f\x7f\ud800-\udfff]+(?![*+?{])")
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{(?P<least>\d+)(?:,(?P<most>\d*))?\})(?P<lazy>\??)", re.ASCII)
_GROUP: Final = re.compile(r"\((?:\?(?:(?P<mark>:)|<[A-Za-z_$][\w$]*>))?")


def rust_pattern(pattern: object) -> str | None:
    """The pattern in Rust's syntax; None if it cannot be used."""
    if not isinstance(pattern, str):
        return None
    try:
        return _Translation(pattern).text
    except (ValueError, IndexError):  # the pattern ends within one of its parts
        return None


class _Translation:
    """One pattern. `text`: the translated one. ValueError or IndexError if it cannot be used."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0
        self._written: list[str] = []
        self._alternative = _Alternative()
        self._enclosing: list[_Alternative] = []
        while self._at < len(pattern):
            self._part(pattern[self._at])
        if self._enclosing:
            raise ValueError("a group has no end")
        self.text = "".join(self._written)

    def _part(self, letter: str) -> None:
        if (plain := _PLAIN.match(self._pattern, self._at)) is not None:
            self._alternative.add(can_be_repeated=True)
            self._written.append(plain[0])
            self._at = plain.end()
        elif (quantifier := _QUANTIFIER.match(self._pattern, self._at)) is not None:
            self._repeat(quantifier)
        elif letter == "(":
            self._open()
        elif letter == ")":
            self._close()
        elif letter in "|^$":
            self._at += 1
            self._alternative.anchored(letter) if letter != "|" else self._alternative.begin_next()
            self._written.append(letter)
        else:
            self._alternative.add(can_be_repeated=True)
            self._written.append(self._atom(letter))

    def _repeat(self, quantifier: re.Match[str]) -> None:
        """Whether a quantifier is lazy does not change which texts match."""
        least, most = quantifier["least"], quantifier["most"]
        if least is not None and not int(least) <= int(most or _MAX_REPETITIONS) <= _MAX_REPETITIONS:
            raise ValueError("the repetitions are too many, or none")
        self._alternative.repeat()
        self._written.append(quantifier[0].removesuffix("?") if quantifier["lazy"] else quantifier[0])
        self._at = quantifier.end()

    def _open(self) -> None:
        group = _GROUP.match(self._pattern, self._at)
        if group is None or self._pattern[group.end() : group.end() + 1] == "?" or len(self._enclosing) >= _MAX_GROUPS:
            raise ValueError("look-around, an unknown form of a group, or too many groups")
        self._enclosing.append(self._alternative)
        self._alternative = _Alternative(self._alternative.is_at_start)
        self._written.append("(?:" if group["mark"] else "(")
        self._at = group.end()

    def _close(self) -> None:
        group, self._alternative = self._alternative, self._enclosing.pop()
        self._alternative.add_group(group)
        self._written.append(")")
        self._at += 1

    def _atom(self, letter: str) -> str:
        if letter == "[":
            return self._class()
        if letter == ".":
            self._at += 1
            return f"[^{_LINE_ENDS}]"
        atom = self._character(letter)
        if isinstance(atom, int):
            if atom in SURROGATES:
                raise ValueError("half of a surrogate pair is no text")
            return literal(atom, SPECIAL)
        if atom in COMPLEMENTS:  # shorter than its own ranges
            return f"[^{COMPLEMENTS[atom]}]"
        return atom if atom.startswith(("\\p", "\\P")) else f"[{atom}]"

    def _character(self, letter: str, *, in_class: bool = False) -> int | str:
        """The code of a character or an escape, or the ranges of an escape that stands for several."""
        if letter != "\\":
            self._at += 1
            return ord(letter)
        escape = ESCAPE.match(self._pattern, self._at)
        if escape is None:
            raise ValueError("the pattern ends with a backslash")
        self._at = escape.end()
        return meaning(escape, in_class=in_class)

    def _class(self) -> str:
        self._at += 1
        negated = self._pattern[self._at] == "^"
        self._at += negated
        start, items = self._at, list[str]()
        while self._pattern[self._at] != "]":
            items += self._item()
        is_empty = self._at == start
        self._at += 1
        if items:
            return f"[{'^' if negated else ''}{''.join(items)}]"
        if not negated and not is_empty:
            raise ValueError("halves of surrogate pairs are no text")
        return f"[{'' if negated else '^'}{_ANY}]"

    def _item(self) -> list[str]:
        """A character or range of a class; two and a hyphen where an end of a range is a set."""
        low = self._character(self._pattern[self._at], in_class=True)
        if self._pattern[self._at] != "-" or self._pattern[self._at + 1] == "]":
            return range_of(low, low)
        self._at += 1
        high = self._character(self._pattern[self._at], in_class=True)
        if isinstance(low, int) and isinstance(high, int):
            return range_of(low, high)
        return [*range_of(low, low), r"\-", *range_of(high, high)]


class _Alternative:
    """Where a translation stands within one alternative of a group. Anchors may only be at its ends.

    `is_at_start`: whether no text is before this part. `has_end`: whether it has `$`. `ends`: whether an alternative
    before has `$`. `has_anchor`: whether the group has an anchor.
    """

    def __init__(self, is_at_start: bool = True) -> None:
        self.is_at_start = self._starts = is_at_start
        self.has_anchor = self.has_end = self.ends = self._can_repeat = False

    def begin_next(self) -> None:
        self.ends |= self.has_end
        self.has_end = self._can_repeat = False
        self.is_at_start = self._starts

    def anchored(self, anchor: str) -> None:
        if anchor == "^" and not self.is_at_start:
            raise ValueError("^ after a text")
        self.has_end |= anchor == "$"
        self.has_anchor, self._can_repeat = True, False

    def add(self, *, can_be_repeated: bool) -> None:
        if self.has_end:
            raise ValueError("$ before a text")
        self.is_at_start, self._can_repeat = False, can_be_repeated

    def add_group(self, group: "_Alternative") -> None:
        self.add(can_be_repeated=not group.has_anchor)
        self.has_anchor |= group.has_anchor
        self.has_end |= group.has_end or group.ends

    def repeat(self) -> None:
        if not self._can_repeat:
            raise ValueError("nothing can be repeated")
        self._can_repeat = False
