"""The demo's language: the form of problems, and the phrasings of answers.

Templates are texts with `{field}` holes. The same hole twice in a template means the same text twice. An opening
bracket `{o}` needs its closing bracket `{c}`. Training draws answers from these templates, and `checker.py` accepts
only these. Where there is a choice, the first option is the commonest.
"""

import re
from functools import cache
from itertools import product

NAMES = ("Tom", "Ann", "Ben", "Mia", "Sam")
ITEMS = ("apples", "books", "coins", "cards", "pens")
LETTERS = ("x", "y", "n", "k", "t", "w")
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"))
VERBS = {"+": "gets", "-": "loses"}

#: Words before a step. Without them the step starts with a capital letter.
LEADS = ("", "First, ", "Now, ", "Well, ", "Then ", "OK so ")

#: Words that may stand in some holes: `E` and `F`, `N` and `M`, `H`, `B`.
MAKES = ("makes", "is", "gives", "=")
IS = ("is", "=")
HENCE = ("so", "hence", "thus")
AS = ("as", "for", "since")

#: What may follow a line of working: the next line begins anew, with a lead of its own, or goes on in this sentence.
ENDS = (". ", "; then ")

#: `{n}`: the number of lines of working that follow.
PLANS = ("", "Lines: {n}. ", "{n} to do. ")

#: A line of working: the sum `X` with its result `r`, remembered as the letter `v`; `A` the name, `it` the things.
LINES = (
    "{v} {N} {X}, {H} {r}",
    "{v} {N} {r} {B} {X}",
    "let {v} be {X}, {H} {v} {N} {r}",
    "{X} {E} {r} {o}{v}{c}",
    "{r} {N} {X}, keep {v}",
    "{o}{v}{c} {X} {E} {r} {o}/{v}{c}",
    "{A} has {r} {it}, {v} {N} {X}",
    "call {X} {v}, {H} {v} {N} {r}",
)

#: Two events in one line: the sum `X` with its result `m`, then the sum `Z` of `m` with the result `r`.
DOUBLE_LINES = ("{v} {N} {r} {B} {Z}", "{v} {N} {Z}, {H} {r}, {m} {M} {X}", "{X} {E} {m}, {Z} {F} {r} {o}{v}{c}")

FINALS = ("So {A} has {r} {it}.", "The answer {N} {r}.", "{r} {it} in all.", "{A}: {r}!", "{o}{r}{c}")

#: The fields of a form, by their keys; all of them, in any order.
FIELDS = {"name": ("name {A}", "{A}"), "thing": ("thing {it}", "{it}"), "now": ("now {r}", "now {r} {B} {X}", "{r}")}
#: `key`: that of the first field.
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

FUNCTIONS = ("def {f}({v}): return {body}", "{f} = lambda {v}: {body}", "def {f}({v}): {y} = {body}; return {y}")
#: `j` becomes `t`; `sum` is the body with the number for the variable.
COMMENTS = ("", " # {f}({j}) {N} {t}", " # {sum} {N} {t}", " # {t}")

_LETTER = f"[{''.join(LETTERS)}]"
_SUM = rf"(?:\d|{_LETTER}) (?:\+|-|and|from) (?:\d|{_LETTER})"
_NAME, _IS, _MAKES = "|".join(NAMES), "|".join(IS), "|".join(MAKES)
_SORTS = {
    "v": _LETTER,
    "y": _LETTER,
    "X": _SUM,
    "Z": _SUM,
    "E": _MAKES,
    "F": _MAKES,
    "N": _IS,
    "M": _IS,
    "H": "|".join(HENCE),
    "B": "|".join(AS),
    "o": r"[(\[{<]",
    "c": r"[)\]}>]",
    "A": _NAME,
    "it": "|".join(ITEMS),
    "f": "|".join(sorted({*(name for names in BODIES.values() for name in names), *MOVES.values()})),
    "key": "|".join(FIELDS),
}


def sums(left: str, sign: str, right: int) -> tuple[str, ...]:
    """Every way to write a sum or a difference."""
    if sign == "+":
        return f"{left} + {right}", f"{right} + {left}", f"{left} and {right}", f"{right} and {left}"
    return f"{left} - {right}", f"{right} from {left}"


def with_lead(lead: str, template: str) -> str:
    """A step template after its lead. Without a lead the template is capitalised."""
    starts_with_word = template[0].isalpha()
    return lead + (template[0].upper() + template[1:] if not lead and starts_with_word else template)


@cache
def pattern(template: str) -> re.Pattern[str]:
    """The regular expression of a template. The second use of a hole refers back to the first."""
    seen: set[str] = set()
    parts: list[str] = []
    for index, piece in enumerate(re.split(r"\{(\w+)\}", template)):
        if index % 2 == 0:
            parts.append(re.escape(piece))
        elif piece in seen:
            parts.append(f"(?P={piece})")
        else:
            seen.add(piece)
            parts.append(f"(?P<{piece}>{_SORTS.get(piece, '[0-9]')})")
    return re.compile("".join(parts))


@cache
def line_patterns(*, double: bool, joined: bool) -> tuple[re.Pattern[str], ...]:
    """Every way a line may be written. `joined`: behind "; then ", so without a lead and without a capital."""
    lines = DOUBLE_LINES if double else LINES
    if joined:
        return tuple(pattern(line) for line in lines)
    return tuple(pattern(with_lead(lead, line)) for lead, line in product(LEADS, lines))
