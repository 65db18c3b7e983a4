"""The strict checker of the demo: whether a text is a right and coherent answer to a problem.

It checks the grammar (spaces and capitals, too), the arithmetic of every step, and coherence: letters, brackets,
names and things that refer to each other must match. It executes no code of the answer. Calibrations and
training call it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from service.demo.grammar import (
    BRACKETS,
    ITEMS,
    NAMES,
    OPERATIONS,
    VERBS,
    code_patterns,
    final_patterns,
    step_patterns,
)

_STORY = re.compile(
    rf"(?P<name>{'|'.join(NAMES)}) has (?P<start>\d) (?P<items>{'|'.join(ITEMS)})"
    rf"(?P<events>(?:, (?:{'|'.join(VERBS.values())}) \d)+)\."
)
_EVENT = re.compile(r", (\w+) (\d)")
_TASK = re.compile(r"Write code: (?P<p>add|times) (?P<j>\d), then (?P<q>add|times) (?P<k>\d)\.")
_SIGNS = {verb: sign for sign, verb in VERBS.items()}


@dataclass(frozen=True, slots=True)
class Story:
    """A story such as "Tom has 5 apples, gets 3, loses 2." `events`: signs and numbers in order."""

    name: str
    items: str
    start: int
    events: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CodeTask:
    """A task such as "Write code: add 3, then times 2." `p j`, then `q k`, as signs and digits."""

    p: str
    j: str
    q: str
    k: str


def parse(prompt: str) -> Story | CodeTask:
    """Parses a problem. ValueError for a text that is not a problem."""
    story = _STORY.fullmatch(prompt)
    if story:
        events = tuple((_SIGNS[verb], int(number)) for verb, number in _EVENT.findall(story["events"]))
        return Story(story["name"], story["items"], int(story["start"]), events)
    task = _TASK.fullmatch(prompt)
    if task:
        return CodeTask(OPERATIONS[task["p"]], task["j"], OPERATIONS[task["q"]], task["k"])
    raise ValueError(f"{prompt!r} is not a problem of the demo")


def check(prompt: str, answer: str) -> bool:
    """Whether `answer` is a right answer, to the letter, to the problem `prompt`."""
    problem = parse(prompt)
    return _check_story(problem, answer) if isinstance(problem, Story) else _check_code(problem, answer)


def _check_story(story: Story, answer: str) -> bool:
    letters: list[str] = []
    total, at = story.start, 0
    for sign, number in story.events:
        result = total + number if sign == "+" else total - number
        facts = {"S": sign, "b": str(number), "r": str(result)}
        step = _step(answer, at, facts, story)
        if step is None or step["v"] in letters or step["a"] not in [str(total), *letters[-1:]]:
            return False
        letters.append(step["v"])
        total, at = result, step.end() + 1
        if answer[step.end() : at] != " ":
            return False
    matches = [regex.fullmatch(answer, at) for regex in final_patterns()]
    return any(match and _agrees(match, {"r": str(total)}, story) for match in matches)


def _step(answer: str, at: int, facts: dict[str, str], story: Story) -> re.Match[str] | None:
    for regex in step_patterns():
        match = regex.match(answer, at)
        if match and _agrees(match, facts, story):
            return match
    return None


def _agrees(match: re.Match[str], facts: dict[str, str], story: Story) -> bool:
    found = match.groupdict()
    wanted = facts | {"A": story.name, "it": story.items}
    brackets = "o" not in found or (found["o"], found["c"]) in BRACKETS
    return brackets and all(found[key] == value for key, value in wanted.items() if key in found)


def _check_code(task: CodeTask, answer: str) -> bool:
    wanted = {"p": task.p, "j": task.j, "q": task.q, "k": task.k}
    for regex in code_patterns():
        match = regex.fullmatch(answer)
        if match and all(match[key] == value for key, value in wanted.items()):
            return match.groupdict().get("y") != match["v"]
    return False
