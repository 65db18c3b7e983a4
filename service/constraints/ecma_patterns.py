r"""Patterns of JSON Schema, which are ECMA-262's regular expressions, as Rust's, which llguidance reads.

A pattern is read as with the flag `u`. Where that is an error, it is read as without the flag: `\-`, a `{` that begins
no quantifier. The result means the same in both languages. None stands for a pattern that is wrong in both readings, or
that llguidance cannot follow: look-around, boundaries, back-references, anchors in the middle of a text.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

#: the ranges of `\\d`, `\\w`, `\\s` and of their complements
_SETS: Final = {
    "d": "0-9",
    "D": "\\x00-/:-\U0010ffff",
    "w": "0-9A-Z_a-z",
    "W": "\\x00-/:-@\\[-\\^`{-\U0010ffff",
    "s": "\\x09-\\x0d \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
    "S": "\\x00-\\x08\\x0e-\\x1f!-\u009f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff"
    "\u3001-\ufefe\uff00-\U0010ffff",
}
_COMPLEMENTS: Final = {_SETS[letter.upper()]: _SETS[letter] for letter in "dsw"}
_LINE_ENDS: Final = "\\x0a\\x0d\u2028\u2029"
_ANY: Final = "\\x00-\U0010ffff"
#: letter of an escape -> the code of its character, or the ranges of its characters
_MEANINGS: Final[Mapping[str, int | str]] = {**_SETS, "0": 0, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_SPECIAL, _SPECIAL_IN_CLASS = frozenset("\\^$.*+?()[]{}|"), frozenset("\\]^-[")
#: operators of sets in Rust's classes, which ECMA-262 does not escape
_OPERATORS: Final = frozenset("&~")
_SURROGATES: Final = range(0xD800, 0xE000)
#: the most groups within each other, and repetitions
_MAX_GROUPS, _MAX_REPETITIONS = 100, 1_000_000

_ESCAPE: Final = re.compile(
    r"\\(?:u\{0*(?P<code>[\da-fA-F]{1,6})\}|u(?P<high>[dD][89abAB][\da-fA-F]{2})\\u(?P<low>[dD][c-fC-F][\da-fA-F]{2})"
    r"|u(?P<unit>[\da-fA-F]{4})|x(?P<byte>[\da-fA-F]{2})|c(?P<control>[A-Za-z])|(?P<property>[pP]\{[\w=]{1,80}\})"
    r"|0(?=\d)|(?P<letter>.))",
    re.ASCII | re.DOTALL,
)
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
            if atom in _SURROGATES:
                raise ValueError("half of a surrogate pair is no text")
            return _literal(atom, _SPECIAL)
        if atom in _COMPLEMENTS:  # shorter than its own ranges
            return f"[^{_COMPLEMENTS[atom]}]"
        return atom if atom.startswith(("\\p", "\\P")) else f"[{atom}]"

    def _character(self, letter: str, *, in_class: bool = False) -> int | str:
        """The code of a character or an escape, or the ranges of an escape that stands for several."""
        if letter != "\\":
            self._at += 1
            return ord(letter)
        escape = _ESCAPE.match(self._pattern, self._at)
        if escape is None:
            raise ValueError("the pattern ends with a backslash")
        self._at = escape.end()
        return _meaning(escape, in_class=in_class)

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
            return _range(low, low)
        self._at += 1
        high = self._character(self._pattern[self._at], in_class=True)
        if isinstance(low, int) and isinstance(high, int):
            return _range(low, high)
        return [*_range(low, low), r"\-", *_range(high, high)]


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


def _meaning(escape: re.Match[str], *, in_class: bool) -> int | str:
    """The code that an escape stands for, or its ranges. ValueError if it stands for neither."""
    if escape["high"]:
        return 0x10000 + ((int(escape["high"], 16) & 0x3FF) << 10) + (int(escape["low"], 16) & 0x3FF)
    if number := escape["code"] or escape["unit"] or escape["byte"]:
        return int(number, 16)
    if escape["control"]:
        return ord(escape["control"]) % 32
    if escape["property"] and _is_property(escape["property"]):
        return escape[0]
    letter = escape["letter"] or ""
    meanings = {**_MEANINGS, "b": 8} if in_class else _MEANINGS
    if letter in meanings:
        return meanings[letter]
    if not letter or (letter.isascii() and letter.isalnum()):  # an anchor, a back-reference, another language's escape
        raise ValueError("an escape without a meaning")
    return ord(letter)


@lru_cache(256)
def _is_property(name: str) -> bool:
    try:
        SchemaValidator(core_schema.str_schema(pattern=f"\\{name}"))
    except SchemaError:
        return False
    return True


def _range(low: int | str, high: int | str) -> list[str]:
    """A range of a class, without halves of surrogate pairs, which no text has."""
    if isinstance(low, str) or isinstance(high, str):
        return [f"{low}"]
    if low > high or high > 0x10FFFF:
        raise ValueError("a range ends before it begins")
    low = _SURROGATES.stop if low in _SURROGATES else low
    high = _SURROGATES.start - 1 if high in _SURROGATES else high
    ends = dict.fromkeys(_literal(code, _SPECIAL_IN_CLASS) for code in (low, high))
    return ["-".join(ends)] if low <= high else []


def _literal(code: int, special: frozenset[str]) -> str:
    letter = chr(code)
    if code < 32 or code == 127 or letter in _OPERATORS:
        return f"\\x{code:02x}"
    return f"\\{letter}" if letter in special else letter
