"""Scorers of a calibration: is this text a right answer to this line of the prompts' file?

A scorer is a function `(line, text) -> bool`. Adding one: a function and a line in `SCORERS`. One of your own is named
`module:function`. Knows no engine and no tokens.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from service.demo import check
from service.errors import SettingsError

#: a line of the prompts' file (`prompt`, `answer`, whatever else it has) and the model's text
Scorer = Callable[[Mapping[str, Any], str], bool]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def demo(line: Mapping[str, Any], text: str) -> bool:
    """The demo's strict checker; needs no answer."""
    try:
        return check(line["prompt"], text)
    except ValueError:
        short = line["prompt"][:60]
        raise SettingsError(
            f"the prompt {short!r} is no problem of the demo: name another scorer for prompts of your own",
            param="scorer",
        ) from None


def exact(line: Mapping[str, Any], text: str) -> bool:
    """The text is the answer, but for spaces around it."""
    return text.strip() == _answer(line).strip()


def contains(line: Mapping[str, Any], text: str) -> bool:
    """The answer stands somewhere in the text."""
    return _answer(line).strip() in text


def number(line: Mapping[str, Any], text: str) -> bool:
    """The last number in the text is the last number in the answer."""
    numbers, expected = _numbers(text), _numbers(_answer(line))
    return bool(numbers and expected) and numbers[-1] == expected[-1]


SCORERS: Mapping[str, Scorer] = {"demo": demo, "exact": exact, "contains": contains, "number": number}
ALLOWED = f"{', '.join(SCORERS)}, regex:PATTERN (its first group is the answer) or module:function"


def find_scorer(name: str) -> Scorer:
    """The scorer of a name. SettingsError if there is none."""
    if name in SCORERS:
        return SCORERS[name]
    kind, colon, rest = name.partition(":")
    if not (kind and colon and rest):
        raise SettingsError(f"scorer is {name!r}, allowed are {ALLOWED}", param="scorer")
    return _by_pattern(rest) if kind == "regex" else _imported(kind, rest)


def check_lines(scorer: Scorer, lines: Iterable[Mapping[str, Any]]) -> None:
    """SettingsError for a line that one of our scorers cannot judge. An imported one is asked of real answers only."""
    if scorer.__module__ == __name__:
        for line in lines:
            scorer(line, "")


def _by_pattern(pattern: str) -> Scorer:
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise SettingsError(f"scorer is 'regex:{pattern}', which is no pattern: {error}", param="scorer") from None
    if not regex.groups:
        raise SettingsError(f"scorer is 'regex:{pattern}', a pattern with a group is expected", param="scorer")

    def captured(line: Mapping[str, Any], text: str) -> bool:
        """What the pattern's last match captures is the answer, as numbers if both are."""
        matches = list(regex.finditer(text))
        return bool(matches) and _value(matches[-1].group(1) or "") == _value(_answer(line))

    return captured


def _imported(module: str, function: str) -> Scorer:
    if "" not in sys.path:  # a program's path has not the folder it is started in
        sys.path.insert(0, str(Path.cwd()))
    try:
        scorer: Scorer = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"scorer is '{module}:{function}', which cannot be imported ({error}); allowed are {ALLOWED}",
            param="scorer",
        ) from error
    return scorer


def _answer(line: Mapping[str, Any]) -> str:
    if "answer" not in line:
        raise SettingsError(f"the line of the prompt {line['prompt'][:60]!r} has no answer, which this scorer needs")
    return str(line["answer"])


def _numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(text)]


def _value(text: str) -> str | float:
    """A number as such, so that 1,000 is 1000.0; other text as it stands."""
    stripped = text.strip()
    return _numbers(stripped)[0] if _NUMBER.fullmatch(stripped) else stripped
