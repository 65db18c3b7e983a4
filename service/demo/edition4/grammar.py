"""The language of the fourth edition: the form of problems, and the phrasings of answers.

Templates are texts with `{field}` holes. The same hole twice in a template means the same text twice. An opening
bracket `{o}` needs its closing bracket `{c}`. Training draws answers from these templates, and `checker.py` accepts
only these.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from re import Pattern

from service.demo.grammar import FINALS, ITEMS, LEADS, LETTERS, NAMES, compiled, with_lead

#: What may follow a line of working: the next line begins anew, with a lead of its own, or goes on in this sentence.
ENDS = (". ", "; then ")

#: `{n}`: the number of lines of working that follow.
PLANS = ("", "In {n} lines: ", "{n} to do. ")

#: A line of working: `a S b = r`, remembered as the letter `v`; `A` the name, `it` the things.
LINES = (
    "let {v} be {a} {S} {b}, so {v} = {r}",
    "{v} = {a} {S} {b} = {r}, hence {v} is {r}",
    "{o}{v}{c} {a} {S} {b} makes {r} {o}/{v}{c}",
    "we see {a} {S} {b} is {r} {o}{v} = {r}{c}",
    "{a} {S} {b} gives {r}, keep {r} as {v}",
    "call it {v}: {a} {S} {b}, so {v} is now {r}",
    "{A} now has {v} {it}, {v} = {a} {S} {b} = {r}",
    "{v} = {r}, that is {a} {S} {b}",
)

#: Two events in one line: `a S b = m`, then `m T d = r`.
DOUBLE_LINES = (
    "{v} = {r}, that is {m} {T} {d}",
    "{v} = {r} from {m} {T} {d} with {m} = {a} {S} {b}",
    "{v} = {a} {S} {b} {T} {d} = {r}",
)

#: Who of two has more or fewer: `W` with `h`, the other is `L` with `l`; `R` is `>` for more and `<` for fewer.
VERDICTS = (
    "{W}: {h} {R} {l}.",
    "{W} with {h}, {L} has {l}.",
    "It is {W}, {h} {R} {l}.",
    "{W}, not {L}: {h} {R} {l}.",
    "{h} {R} {l}, so {W}.",
    "{L} has {l}, {W} has {h}, so it is {W}.",
    "{W} is at {h} and {L} at {l}.",
    "By {e} it is {W}, {h} {R} {l}.",
)
#: What may follow a verdict: the gap `e`.
GAPS = ("", " The gap is {e}.", " Off by {e}: {large} - {small} = {e}.")
#: Both have `h`.
TIES = ("None: {h} = {h}.", "{h} = {h}, so none.", "None, {W} and {L} at {h}.", "Both have {h}.")

FIELDS = ("name {A}", "thing {it}", "now {r}", "now {r} = {a} {S} {b}")
#: `key`: the word of the first field.
HEADERS = ("", "By {key}: ", "{o}{key}{c} ")
SEPARATORS = (", ", "; ", " / ")

#: A function's body, in which `v` becomes `t`; names that only it may have.
BODIES = {
    "{v} + {k}": ("add", "more"),
    "{k} + {v}": ("add", "plus"),
    "{v} - {k}": ("sub", "less"),
    "{k} - {v}": ("flip", "from"),
    "{v} * {k}": ("mul", "times"),
    "{k} * {v}": ("mul", "of"),
}
#: Names by what happens to the number: it grows, it shrinks, it stays.
MOVES = {1: "up", -1: "down", 0: "same"}

FUNCTIONS = (
    "def {f}({v}): return {body}",
    "{f} = lambda {v}: {body}",
    "def {f}({v}): {y} = {body}; return {y}",
)
#: `j` becomes `t`; `sum` is the body with the number for the variable.
COMMENTS = ("", " # {f}({j}) is {t}", " # {sum} = {t}", " # {t}")

_LETTER = f"[{''.join(LETTERS)}]"
_NAME = "|".join(NAMES)
_SORTS = {
    "v": _LETTER,
    "y": _LETTER,
    "a": rf"(?:\d|{_LETTER})",
    "S": r"[+\-]",
    "T": r"[+\-]",
    "R": "[<>]",
    "o": r"[(\[{<]",
    "c": r"[)\]}>]",
    "A": _NAME,
    "W": _NAME,
    "L": _NAME,
    "it": "|".join(ITEMS),
    "f": "|".join(sorted({*(name for names in BODIES.values() for name in names), *MOVES.values()})),
    "key": "name|thing|now",
}


@cache
def pattern(template: str) -> Pattern[str]:
    """The regular expression of a template."""
    return compiled(template, _SORTS)


@cache
def line_patterns(*, double: bool, joined: bool) -> tuple[Pattern[str], ...]:
    """Every way a line may be written. `joined`: behind "; then ", so without a lead and without a capital."""
    lines = DOUBLE_LINES if double else LINES
    if joined:
        return tuple(pattern(line) for line in lines)
    return tuple(pattern(with_lead(lead, line)) for lead, line in product(LEADS, lines))


@cache
def final_patterns() -> tuple[Pattern[str], ...]:
    """Every way an answer to a story may end."""
    return tuple(pattern(final) for final in FINALS)
