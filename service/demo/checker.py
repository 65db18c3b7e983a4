"""The strict checker of the demo: whether a text is a right and coherent answer to a problem.

It checks the grammar (spaces and capitals, too), the arithmetic, and coherence: letters, brackets, names and counts
that refer to each other must match, whichever stands first. It executes no code of the answer.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from service.demo import grammar
from service.demo.grammar import BODIES, FIELDS, Code, Story, line_patterns, parse, pattern, sums

#: What may stand in a hole.
Facts = Mapping[str, Collection[str]]


def check(prompt: str, answer: str) -> bool:
    """Whether `answer` is a right answer, to the letter, to the problem `prompt`."""
    task = parse(prompt)
    if isinstance(task, Code):
        return _check_code(task, answer)
    return _check_form(task, answer) if task.form else _check_story(task, answer)


def _agrees(match: re.Match[str] | None, facts: Facts) -> bool:
    if match is None:
        return False
    holes = match.groupdict()
    brackets = "o" not in holes or (holes["o"], holes["c"]) in grammar.BRACKETS
    return brackets and all(holes[key] in values for key, values in facts.items() if key in holes)


@dataclass(frozen=True, slots=True)
class _Position:
    """A position between two lines of working: `events` and `letters` so far. `joined`: it is inside a sentence."""

    at: int
    events: int
    letters: tuple[str, ...]
    lines: int = 0
    joined: bool = False


def _check_story(story: Story, answer: str) -> bool:
    for plan in grammar.PLANS:
        start = pattern(plan).match(answer)
        if start:
            counts = [position.lines for position in _ends(story, answer, _Position(start.end(), 0, ()))]
            if any(start.groupdict().get("n", str(count)) == str(count) for count in counts):
                return True
    return False


def _ends(story: Story, answer: str, position: _Position) -> Iterator[_Position]:
    """The last positions of all ways to read the answer from `position` to its end."""
    if position.events == len(story.events):
        facts = {"r": [str(story.totals[-1])], "A": [story.name], "it": [story.items]}
        if not position.joined and any(
            _agrees(pattern(final).fullmatch(answer, position.at), facts) for final in grammar.FINALS
        ):
            yield position
        return
    for double in (False, True):
        if position.events + double < len(story.events):
            for following in _lines(story, answer, position, double):
                yield from _ends(story, answer, following)


def _lines(story: Story, answer: str, position: _Position, double: bool) -> Iterator[_Position]:
    facts = _facts(story, position, double)
    for regex in line_patterns(double=double, joined=position.joined):
        match = regex.match(answer, position.at)
        if match and _agrees(match, facts) and match["v"] not in position.letters:
            for end in grammar.ENDS:
                if answer.startswith(end, match.end()):
                    letters, joined = (*position.letters, match["v"]), end != grammar.ENDS[0]
                    after = position.events + 1 + double
                    yield _Position(match.end() + len(end), after, letters, position.lines + 1, joined)


def _facts(story: Story, position: _Position, double: bool) -> Facts:
    totals, (sign, number) = story.totals[position.events :], story.events[position.events]
    lefts = (str(totals[0]), *position.letters[-1:])
    expressions = [text for left in lefts for text in sums(left, sign, number)]
    facts: Facts = {"X": expressions, "r": [str(totals[1 + double])], "A": [story.name], "it": [story.items]}
    if not double:
        return facts
    return {**facts, "m": [str(totals[1])], "Z": sums(str(totals[1]), *story.events[position.events + 1])}


def _check_form(story: Story, answer: str) -> bool:
    *_, before, result = story.totals
    sign, number = story.events[-1]
    facts: Facts = {
        "r": [str(result)], "X": sums(str(before), sign, number), "A": [story.name], "it": [story.items],
    }  # fmt: skip

    def key(field: str) -> str | None:
        """The key of a field; None for a text that is none, or that is filled wrongly."""
        for key, templates in FIELDS.items():
            if any(_agrees(pattern(template).fullmatch(field), facts) for template in templates):
                return key
        return None

    for header in grammar.HEADERS:
        start = pattern(header).match(answer)
        if start and _agrees(start, {}) and answer.endswith("."):
            for separator in grammar.SEPARATORS:
                keys = [key(field) for field in answer[start.end() : -1].split(separator)]
                if sorted(map(str, keys)) == sorted(FIELDS) and start.groupdict().get("key", keys[0]) == keys[0]:
                    return True
    return False


def _check_code(task: Code, answer: str) -> bool:
    move = grammar.MOVES[(task.t > task.j) - (task.t < task.j)]
    for body, function, comment in product(BODIES, grammar.FUNCTIONS, grammar.COMMENTS):
        text = (function + comment).replace("{body}", body).replace("{sum}", body.replace("{v}", "{j}"))
        match = pattern(text).fullmatch(answer)
        facts = {"v": [task.v], "j": [str(task.j)], "t": [str(task.t)], "f": [*BODIES[body], move]}
        if match and _agrees(match, facts) and match.groupdict().get("y") != task.v:
            j, k = task.j, int(match["k"])
            results = {"*": j * k, "+": j + k, "-": j - k if body.startswith("{v}") else k - j}
            return results[body.split()[1]] == task.t
    return False
