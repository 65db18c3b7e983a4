"""The demo's language: the form of problems, and the phrasings of answers.

Templates are texts with `{field}` holes. The same hole twice in a template means the same text twice. An opening
bracket `{o}` needs its closing bracket `{c}`. Training draws answers from these templates, and `checker.py` accepts
only these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

NAMES = ("Tom", "Ann", "Ben", "Mia", "Sam")
ITEMS = ("apples", "books", "coins", "cards", "pens")
LETTERS = ("x", "y", "n", "k", "t", "w")
LETTER_WEIGHTS = (0.28, 0.20, 0.16, 0.13, 0.12, 0.11)
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"))
VERBS = {"+": "gets", "-": "loses"}

#: Words before a step. Without them the step starts with a capital letter.
LEADS = ("", "First, ", "Now, ", "Well, ", "Then ", "OK so ")
LEAD_WEIGHTS = (0.40, 0.12, 0.12, 0.12, 0.12, 0.12)

#: One line of working: `a S b = r`, remembered as the letter `v`; `A` the name, `it` the things.
STEPS = (
    "let {v} be {a} {S} {b}, so {v} = {r}.",
    "{v} = {a} {S} {b} = {r}, hence {v} is {r}.",
    "{o}{v}{c} {a} {S} {b} makes {r} {o}/{v}{c}",
    "we see {a} {S} {b} is {r} {o}{v} = {r}{c}",
    "{a} {S} {b} gives {r}; keep {r} as {v}.",
    "call it {v}: {a} {S} {b}, so {v} is now {r}.",
    "{A} now has {v} {it}, {v} = {a} {S} {b} = {r}.",
)

FINALS = (
    "The answer is {r}.",
    "So {A} has {r} {it}.",
    "That makes {r} {it} in all.",
    "{o}answer{c} {r} {o}/answer{c}",
    "Total for {A}: {r}!",
)

FUNCTIONS = ("f", "g", "run", "calc")
OPERATIONS = {"add": "+", "times": "*"}

#: A function of one argument `v`: first `p j`, then `q k` (`p`, `q` are operations, `j`, `k` digits).
CODES = (
    "def {f}({v}): return ({v} {p} {j}) {q} {k}",
    "def {f}({v}): return {k} {q} ({v} {p} {j})",
    "def {f}({v}): {y} = {v} {p} {j}; return {y} {q} {k}",
    "{f} = lambda {v}: {k} {q} ({v} {p} {j})",
    "def {f}({v}): {v} = {j} {p} {v}; return {v} {q} {k}",
)
COMMENTS = ("", " # call {f}({v})", " # {f} of {v}")

_LETTER = f"[{''.join(LETTERS)}]"
_FIELDS = {
    "v": _LETTER,
    "y": _LETTER,
    "a": rf"(?:\d|{_LETTER})",
    "S": r"[+\-]",
    "p": r"[+*]",
    "q": r"[+*]",
    "o": r"[(\[{<]",
    "c": r"[)\]}>]",
    "A": "|".join(NAMES),
    "it": "|".join(ITEMS),
    "f": "|".join(FUNCTIONS),
}


def with_lead(lead: str, template: str) -> str:
    """A step template after its lead. Without a lead the template is capitalised."""
    starts_with_word = template[0].isalpha()
    return lead + (template[0].upper() + template[1:] if not lead and starts_with_word else template)


@cache
def pattern(template: str) -> re.Pattern[str]:
    """The regular expression of a template."""
    return compiled(template, _FIELDS)


def compiled(template: str, fields: Mapping[str, str]) -> re.Pattern[str]:
    """The regular expression of a template. The second use of a hole refers back to the first.

    `fields`: the regular expressions of holes; other holes have a digit.
    """
    seen: set[str] = set()
    parts: list[str] = []
    for index, piece in enumerate(re.split(r"\{(\w+)\}", template)):
        if index % 2 == 0:
            parts.append(re.escape(piece))
        elif piece in seen:
            parts.append(f"(?P={piece})")
        else:
            seen.add(piece)
            parts.append(f"(?P<{piece}>{fields.get(piece, '[0-9]')})")
    return re.compile("".join(parts))


def step_patterns() -> tuple[re.Pattern[str], ...]:
    """Every way a line of working may be written, its lead included."""
    return tuple(pattern(with_lead(lead, step)) for lead in LEADS for step in STEPS)


def final_patterns() -> tuple[re.Pattern[str], ...]:
    """Every way an answer may end."""
    return tuple(pattern(final) for final in FINALS)


def code_patterns() -> tuple[re.Pattern[str], ...]:
    """Every way a function may be written, its comment included."""
    return tuple(pattern(code + comment) for code in CODES for comment in COMMENTS)
