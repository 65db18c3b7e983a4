"""Single characters, escapes and classes of ECMA-262's regular expressions, for `ecma_patterns.py`."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

#: the ranges of `\d`, `\w`, `\s` and of their complements
_SETS: Final = {
    "d": "0-9",
    "D": "\\x00-/:-\U0010ffff",
    "w": "0-9A-Z_a-z",
    "W": "\\x00-/:-@\\[-\\^`{-\U0010ffff",
    "s": "\\x09-\\x0d \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
    "S": "\\x00-\\x08\\x0e-\\x1f!-\u009f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff"
    "\u3001-\ufefe\uff00-\U0010ffff",
}
COMPLEMENTS: Final = {_SETS[letter.upper()]: _SETS[letter] for letter in "dsw"}
#: letter of an escape -> the code of its character, or the ranges of its characters
_MEANINGS: Final[Mapping[str, int | str]] = {**_SETS, "0": 0, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
SPECIAL, SPECIAL_IN_CLASS = frozenset("\\^$.*+?()[]{}|"), frozenset("\\]^-[")
#: operators of sets in Rust's classes, which ECMA-262 does not escape
_OPERATORS: Final = frozenset("&~")
SURROGATES: Final = range(0xD800, 0xE000)
ESCAPE: Final = re.compile(
    r"\\(?:u\{0*(?P<code>[\da-fA-F]{1,6})\}|u(?P<high>[dD][89abAB][\da-fA-F]{2})\\u(?P<low>[dD][c-fC-F][\da-fA-F]{2})"
    r"|u(?P<unit>[\da-fA-F]{4})|x(?P<byte>[\da-fA-F]{2})|c(?P<control>[A-Za-z])|(?P<property>[pP]\{[\w=]{1,80}\})"
    r"|0(?=\d)|(?P<letter>.))",
    re.ASCII | re.DOTALL,
)


def meaning(escape: re.Match[str], *, in_class: bool) -> int | str:
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


def range_of(low: int | str, high: int | str) -> list[str]:
    """A range of a class, without halves of surrogate pairs, which no text has."""
    if isinstance(low, str) or isinstance(high, str):
        return [f"{low}"]
    if low > high or high > 0x10FFFF:
        raise ValueError("a range ends before it begins")
    low = SURROGATES.stop if low in SURROGATES else low
    high = SURROGATES.start - 1 if high in SURROGATES else high
    ends = dict.fromkeys(literal(code, SPECIAL_IN_CLASS) for code in (low, high))
    return ["-".join(ends)] if low <= high else []


def literal(code: int, special: frozenset[str]) -> str:
    """A character by its code, escaped if it is one of `special`."""
    letter = chr(code)
    if code < 32 or code == 127 or letter in _OPERATORS:
        return f"\\x{code:02x}"
    return f"\\{letter}" if letter in special else letter
