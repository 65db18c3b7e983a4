"""The prompts of a calibration as tasks for an engine, and the scorers of the answers.

A scorer is a function `(line, text) -> bool`: whether the text is a right answer to the line (`prompt`, `answer`).
A new one is a line in `SCORERS`; a scorer of the user is named `module:function`.
"""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from service.demo import check
from service.errors import SettingsError
from service.text import TextCodec

#: a line of the prompts' file (`prompt`, `answer` and any other fields) and the model's text
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
    kind, colon, value = name.partition(":")
    if not (kind and colon and value):
        raise SettingsError(f"scorer is {name!r}, allowed are {ALLOWED}", param="scorer")
    return _by_pattern(value) if kind == "regex" else _imported(kind, value)


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
        """The capture of the pattern's last match is the answer; two numbers are compared as numbers."""
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
    return [float(match.replace(",", "")) for match in _NUMBER.findall(text)]


def _value(text: str) -> str | float:
    """A number as such, so that 1,000 is 1000.0; other text as it stands."""
    return _numbers(text)[0] if _NUMBER.fullmatch(text.strip()) else text.strip()


# --- prompts ------------------------------------------------------------------------------------------


class Prompts(NamedTuple):
    """The lines, in order, and a hash of them."""

    lines: tuple[dict[str, Any], ...]
    sha256: str


@dataclass(frozen=True, slots=True)
class PromptTask:
    """A prompt as token ids, and whether a completion's ids answer it."""

    prompt_token_ids: tuple[int, ...]
    is_right: Callable[[tuple[int, ...]], bool]


def read_prompts(path: Path, count: int | None = None) -> Prompts:
    """The first `count` lines of a file, or all. SettingsError names a line that is none."""
    try:
        texts = [text for text in path.read_text(encoding="utf-8").splitlines() if text.strip()]
    except OSError as error:
        raise SettingsError(f"the prompts {path} cannot be read: {error.strerror}", param="prompts") from None
    except ValueError:
        raise SettingsError(f"the prompts {path} are no text in UTF-8", param="prompts") from None
    if count is not None and count > len(texts):
        raise SettingsError(f"count is {count}, {path} has {len(texts)} lines", param="count")
    texts = texts[:count]
    if not texts:
        raise SettingsError(f"{path} holds no prompts", param="prompts")
    lines = []
    for index, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise SettingsError(f"{path}, line {index} is not JSON: {error}", param="prompts") from None
        if not isinstance(line, dict) or not isinstance(line.get("prompt"), str) or not line["prompt"]:
            reason = f"{path}, line {index} is {text[:80]}, an object with the text `prompt` is expected"
            raise SettingsError(reason, param="prompts")
        lines.append(line)
    return Prompts(tuple(lines), hashlib.sha256("\n".join(texts).encode()).hexdigest())


def tasks_of(
    codec: TextCodec, lines: Sequence[Mapping[str, Any]], scorer: Scorer, *, raw: bool = False
) -> list[PromptTask]:
    """A task for each line. Prompts are chats of one message; with `raw`, or without a template, they stay texts."""
    encode = codec.encode if raw or not codec.template.source else codec.encode_message

    def is_right(line: Mapping[str, Any], answer: tuple[int, ...]) -> bool:
        return bool(scorer(line, codec.decode(answer)))

    return [PromptTask(tuple(encode(line["prompt"])), partial(is_right, line)) for line in lines]
