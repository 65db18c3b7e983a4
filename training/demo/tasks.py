"""Draws problems and their answers in the demo's language (`service/demo/grammar.py`).

Every answer draws a new phrasing, and the rest of the answer must agree with it, also what stands before. A parallel
decoder makes errors just there. `is_heldout` decides whether a problem may be used in training.
"""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from service.demo import grammar
from service.demo.grammar import Code, Story, parse

#: shares of stories, forms and code
SHARES = (0.65, 0.15, 0.2)
#: shares of stories with one, two and three events
EVENT_SHARES = (0.2, 0.4, 0.4)
REUSE_SHARE, DOUBLE_SHARE = 0.4, 0.4
#: the weights of `grammar.LEADS`
_LEAD_WEIGHTS = (0.40, 0.12, 0.12, 0.12, 0.12, 0.12)
_HELDOUT_OF_256 = 26

_WORDS = {
    "E": grammar.MAKES, "F": grammar.MAKES, "N": grammar.IS, "M": grammar.IS, "H": grammar.HENCE, "B": grammar.AS,
}  # fmt: skip
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Example:
    """A problem and one of its right answers."""

    prompt: str
    answer: str


def is_heldout(text: str) -> bool:
    """Whether a problem, or a file of this name, is held out of training (about one in ten). Its hash decides."""
    return hashlib.sha256(text.encode()).digest()[0] < _HELDOUT_OF_256


def draw(rng: random.Random, *, heldout: bool = False) -> Example:
    """One example from the training side of the split, or from the held-out side."""
    while True:
        prompt = rng.choices([*KINDS.values()], SHARES)[0](rng)
        if is_heldout(prompt) == heldout:
            return Example(prompt, answer(rng, prompt))


def answer(rng: random.Random, prompt: str) -> str:
    """One of the right answers to a problem. ValueError for a text that is not a problem."""
    task = parse(prompt)
    if isinstance(task, Code):
        return _code(rng, task)
    return _form(rng, task) if task.form else _story(rng, task)


def choose(rng: random.Random, options: Sequence[_T]) -> _T:
    """One of the options. As in language, the n-th is taken with a weight of 1 / n."""
    return rng.choices(options, [1 / rank for rank in range(1, len(options) + 1)])[0]


def _story_prompt(rng: random.Random) -> str:
    total = rng.randint(1, 9)
    prompt = f"{rng.choice(grammar.NAMES)} has {total} {rng.choice(grammar.ITEMS)}"
    for _ in range(rng.choices((1, 2, 3), EVENT_SHARES)[0]):
        change = _change(rng, total)
        total += change
        prompt += f", {grammar.VERBS['+' if change > 0 else '-']} {abs(change)}"
    return prompt + "."


def _form_prompt(rng: random.Random) -> str:
    return f"Form: {_story_prompt(rng)}"


def _code_prompt(rng: random.Random) -> str:
    return f"Write code in {rng.choice(grammar.LETTERS)}: {rng.randint(0, 9)} to {rng.randint(0, 9)}."


def _change(rng: random.Random, total: int) -> int:
    """A change by at most nine to a number of one digit."""
    return rng.choice([change for change in range(-9, 10) if change and 0 <= total + change <= 9])


def _story(rng: random.Random, story: Story) -> str:
    events, totals = story.events, story.totals
    at, lines, text, letters, end = 0, 0, "", list[str](), grammar.ENDS[0]
    while at < len(events):
        double = at + 1 < len(events) and rng.random() < DOUBLE_SHARE
        left = letters[-1] if letters and rng.random() < REUSE_SHARE else str(totals[at])
        letters.append(_letter(rng, letters))
        fields = {"v": letters[-1], "X": choose(rng, grammar.sums(left, *events[at])), "r": totals[at + 1 + double]}
        if double:
            fields |= {"m": totals[at + 1], "Z": choose(rng, grammar.sums(str(totals[at + 1]), *events[at + 1]))}
        line = choose(rng, grammar.DOUBLE_LINES if double else grammar.LINES)
        if end == grammar.ENDS[0]:
            line = grammar.with_lead(rng.choices(grammar.LEADS, _LEAD_WEIGHTS)[0], line)
        at, lines = at + 1 + double, lines + 1
        end = choose(rng, grammar.ENDS) if at < len(events) else grammar.ENDS[0]
        text += _fill(rng, line + end, fields | {"A": story.name, "it": story.items})
    plan = choose(rng, grammar.PLANS).format(n=lines)
    final = _fill(rng, choose(rng, grammar.FINALS), {"r": totals[-1], "A": story.name, "it": story.items})
    return plan + text + final


def _form(rng: random.Random, story: Story) -> str:
    *_, before, result = story.totals
    keys = rng.sample(list(grammar.FIELDS), len(grammar.FIELDS))
    fields = choose(rng, grammar.SEPARATORS).join(choose(rng, grammar.FIELDS[key]) for key in keys)
    total = choose(rng, grammar.sums(str(before), *story.events[-1]))
    facts = {"r": result, "X": total, "A": story.name, "it": story.items, "key": keys[0]}
    return _fill(rng, choose(rng, grammar.HEADERS) + fields + ".", facts)


def _code(rng: random.Random, task: Code) -> str:
    body, k = choose(rng, _bodies(task))
    move = grammar.MOVES[(task.t > task.j) - (task.t < task.j)]
    template = choose(rng, grammar.FUNCTIONS) + choose(rng, grammar.COMMENTS)
    fields = {"v": task.v, "y": _letter(rng, [task.v]), "k": k, "j": task.j, "t": task.t}
    written = {"body": body.format(**fields), "sum": body.format(**(fields | {"v": task.j}))}
    name = choose(rng, (*grammar.BODIES[body], move))
    return template.format(f=name, N=choose(rng, grammar.IS), **fields, **written)


def _bodies(task: Code) -> list[tuple[str, int]]:
    """Every body that makes `t` of `j`, with its digit."""
    j, t = task.j, task.t
    digits = {"{v} + {k}": t - j, "{k} + {v}": t - j, "{v} - {k}": j - t, "{k} - {v}": t + j}
    right = [(body, k) for body, k in digits.items() if 0 <= k <= 9]
    if j and t % j == 0:
        right += [("{v} * {k}", t // j), ("{k} * {v}", t // j)]
    return right


def _letter(rng: random.Random, used: list[str]) -> str:
    return choose(rng, [letter for letter in grammar.LETTERS if letter not in used])


#: draws a problem of one kind
KINDS: Mapping[str, Callable[[random.Random], str]] = {
    "story": _story_prompt,
    "form": _form_prompt,
    "code": _code_prompt,
}


def _fill(rng: random.Random, template: str, fields: dict[str, object]) -> str:
    opening, closing = choose(rng, grammar.BRACKETS)
    drawn = {hole: choose(rng, options) for hole, options in _WORDS.items()}
    return template.format(**fields, **drawn, o=opening, c=closing)
