"""The strict checker of the demo: whether a text is a right and coherent answer to a problem.

It checks the grammar (spaces and capitals, too), the arithmetic of every step, and coherence: letters, brackets,
names and things that refer to each other must match. It executes no code of the answer. Calibrations and
training call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from service.demo.grammar import BRACKETS, ITEMS, NAMES, OPERATIONS, VERBS, code_patterns, final_patterns, step_patterns

_STORY = re.compile(
    rf"(?P<name>{'|'.join(NAMES)}) has (?P<start>\d) (?P<items>{'|'.join(ITEMS)})"
    rf"(?P<events>(?:, (?:{'|'.join(VERBS.values())}) \d)+)\."
)
_EVENT = re.compile(r", (\w+) (\d)")
_TASK = re.compile(r"Write code: (?P<p>add|times) (?P<j>\d), then (?P<q>add|times) (?P<k>\d)\.")
_SIGNS = {verb: sign for sign, verb in VERBS.items()}


class WordProblem(NamedTuple):
    """A problem such as "Tom has 5 apples, gets 3, loses 2." `events`: signs and numbers in order."""

    name: str
    items: str
    start: int
    events: tuple[tuple[str, int], ...]


class CodeTask(NamedTuple):
    """A task such as "Write code: add 3, then times 2." `p j`, then `q k`, as signs and digits."""

    p: str
    j: str
    q: str
    k: str


def parse(prompt: str) -> WordProblem | CodeTask:
    """Parses a problem. ValueError for a text that is not a problem."""
    if story := _STORY.fullmatch(prompt):
        events = tuple((_SIGNS[verb], int(number)) for verb, number in _EVENT.findall(story["events"]))
        return WordProblem(story["name"], story["items"], int(story["start"]), events)
    if task := _TASK.fullmatch(prompt):
        return CodeTask(OPERATIONS[task["p"]], task["j"], OPERATIONS[task["q"]], task["k"])
    raise ValueError(f"{prompt!r} is not a problem of the demo")


def check(prompt: str, answer: str) -> bool:
    """Whether `answer` is a right answer, to the letter, to the problem `prompt`."""
    problem = parse(prompt)
    return _check_steps(problem, answer) if isinstance(problem, WordProblem) else _check_code(problem, answer)


def _check_steps(problem: WordProblem, answer: str) -> bool:
    words = {"A": problem.name, "it": problem.items}
    letters: list[str] = []
    total, at = problem.start, 0
    for sign, number in problem.events:
        result = total + number if sign == "+" else total - number
        facts = {**words, "S": sign, "b": str(number), "r": str(result)}
        step = _first_agreeing((regex.match(answer, at) for regex in step_patterns()), facts)
        if step is None or step["v"] in letters or step["a"] not in [str(total), *letters[-1:]]:
            return False
        letters.append(step["v"])
        total, at = result, step.end() + 1
        if answer[step.end() : at] != " ":
            return False
    ends = (regex.fullmatch(answer, at) for regex in final_patterns())
    return _first_agreeing(ends, {**words, "r": str(total)}) is not None


def _first_agreeing(matches: Iterable[re.Match[str] | None], facts: Mapping[str, str]) -> re.Match[str] | None:
    """The first match whose holes have these facts and whose brackets close."""
    for match in matches:
        fields = match.groupdict() if match else {}
        brackets = "o" not in fields or (fields["o"], fields["c"]) in BRACKETS
        if match and brackets and all(fields[key] == value for key, value in facts.items() if key in fields):
            return match
    return None


def _check_code(task: CodeTask, answer: str) -> bool:
    for regex in code_patterns():
        match = regex.fullmatch(answer)
        if match and match.group("p", "j", "q", "k") == task:
            return match.groupdict().get("y") != match["v"]
    return False
