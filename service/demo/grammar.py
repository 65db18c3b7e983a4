"""The demo's language: the form of problems, and the phrasings of answers.

Templates are texts with `{field}` holes. The same hole twice in a template means the same text twice. An opening
bracket `{o}` needs its closing bracket `{c}`. Training draws answers from these templates, and `checker.py` accepts
only these. Where there is a choice, the first option is the commonest.
"""

import re
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, product

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
_NAME, _ITEM, _IS, _MAKES = "|".join(NAMES), "|".join(ITEMS), "|".join(IS), "|".join(MAKES)
_SORTS = {
    **dict.fromkeys("vy", _LETTER),
    **dict.fromkeys("XZ", _SUM),
    **dict.fromkeys("EF", _MAKES),
    **dict.fromkeys("NM", _IS),
    "H": "|".join(HENCE),
    "B": "|".join(AS),
    "o": r"[(\[{<]",
    "c": r"[)\]}>]",
    "A": _NAME,
    "it": _ITEM,
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


# --- problems -----------------------------------------------------------------------------------------

_STORY = re.compile(
    rf"(?P<form>Form: )?(?P<name>{_NAME}) has (?P<start>\d) (?P<items>{_ITEM})"
    rf"(?P<events>(?:, (?:{'|'.join(VERBS.values())}) \d){{1,3}})\."
)
_CODE = re.compile(rf"Write code in (?P<v>{_LETTER}): (?P<j>\d) to (?P<t>\d)\.")
_EVENT = re.compile(r", (\w+) (\d)")
_SIGNS = {verb: sign for sign, verb in VERBS.items()}


@dataclass(frozen=True, slots=True)
class Story:
    """A story such as "Tom has 5 apples, gets 3, loses 2." `form`: the answer is a filled form."""

    name: str
    items: str
    start: int
    events: tuple[tuple[str, int], ...]
    form: bool = False

    @property
    def totals(self) -> list[int]:
        """What there is at the start and after every event."""
        changes = (number if sign == "+" else -number for sign, number in self.events)
        return list(accumulate(changes, initial=self.start))


@dataclass(frozen=True, slots=True)
class Code:
    """A task such as "Write code in k: 3 to 8." `v`: the variable. The function makes `t` of `j`."""

    v: str
    j: int
    t: int


def parse(prompt: str) -> Story | Code:
    """Parses a problem. ValueError for a text that is not a problem."""
    if story := _STORY.fullmatch(prompt):
        events = tuple((_SIGNS[verb], int(number)) for verb, number in _EVENT.findall(story["events"]))
        return Story(story["name"], story["items"], int(story["start"]), events, story["form"] is not None)
    if code := _CODE.fullmatch(prompt):
        return Code(code["v"], int(code["j"]), int(code["t"]))
    raise ValueError(f"{prompt!r} is not a problem of the demo")
