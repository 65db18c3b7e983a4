"""Reads a JSONL of conversations, prompts with completions, or plain text as examples of tokens.

The targets are the tokens that a model has to write: assistants' messages with their end token, completions, or a
whole text. Every assistant's message is its own example, after everything before it, as it is in decoding. Long
messages are split into several examples. The caller provides the tokenizer.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from service.errors import DataError, InvalidRequest


class Codec(Protocol):
    """The functions of a checkpoint's tokenizer that are needed."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""

    def chat_pieces(
        self, messages: Sequence[Mapping[str, str]], *, answer: bool = True
    ) -> list[tuple[list[int], int | None]]:
        """Ids of the template's own text (with None) and of messages' contents (with their index), in order."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_length`: the most tokens of a conversation, which is cut there. `window`: target tokens of one example."""

    block: int
    max_length: int = 2048
    window: int = 256


@dataclass(frozen=True, slots=True)
class Example:
    """The tokens `start` to `end` of a sequence are targets, the tokens before are context.

    Several examples may share one sequence.
    """

    sequence: Sequence[int]
    start: int
    end: int

    @property
    def tokens(self) -> list[int]:
        """The tokens of the sequence up to the end of the targets."""
        return list(self.sequence[: self.end])


@dataclass(frozen=True, slots=True)
class Corpus:
    """Examples for training and held-out ones. `lines`: lines of the file. `cut`: lines that were too long."""

    train: list[Example]
    heldout: list[Example]
    lines: int
    cut: int


def read_corpus(path: Path, codec: Codec, ends: Sequence[int], limits: Limits, heldout: float) -> Corpus:
    """Reads a file. A share of its lines is held out, the same lines in every run.

    DataError names a line that cannot be used, or says that the file has none.
    """
    reader, parsed = _Reader(codec, ends), []
    for number, line in _lines(path):
        try:
            parsed.append((hashlib.sha256(line).digest(), *reader.spans(_parse(line))))
        except (DataError, InvalidRequest) as error:
            raise DataError(f"{path}, line {number}: {error.message}") from error
    if not parsed:
        raise DataError(f"{path} has no lines")
    # The split is by content, so that equal lines are on the same side.
    border = sorted(digest for digest, _, _ in parsed)[min(len(parsed) - 1, round(heldout * len(parsed)))]
    sides: tuple[list[Example], list[Example]] = ([], [])
    for digest, tokens, spans in parsed:
        sides[digest < border].extend(windows(tokens, spans, limits))
    if not sides[0]:
        raise DataError(f"{path} has no answer that begins within {limits.max_length} tokens")
    return Corpus(*sides, len(parsed), sum(len(tokens) > limits.max_length for _, tokens, _ in parsed))


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a JSONL with the numbers of their lines. DataError names a line that is none."""
    for number, line in _lines(path):
        try:
            yield number, _parse(line)
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error.message}") from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            yield from ((number, line.strip()) for number, line in enumerate(file, start=1) if line.strip())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise DataError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"a JSON object is expected, this is {_kind(value)}")
    return value


class _Reader:
    """Reads lines as tokens, with the spans `(start, end)` of the targets."""

    def __init__(self, codec: Codec, ends: Sequence[int]) -> None:
        self._codec, self._ends = codec, ends

    def spans(self, value: dict[str, Any]) -> tuple[list[int], list[tuple[int, int]]]:
        if "messages" in value:
            return self._chat(as_messages(value["messages"]))
        prompt = ""
        if "prompt" in value or "completion" in value:
            prompt, text = _text(value, "prompt"), _text(value, "completion")
        elif "text" in value:
            text = _text(value, "text")
        else:
            raise DataError(f"'messages', 'prompt' and 'completion', or 'text' is expected, {_keys(value)}")
        before = self._codec.encode(prompt)
        tokens = [*before, *self._codec.encode(text), *self._ends[:1]]
        return tokens, [(len(before), len(tokens))]

    def _chat(self, messages: list[dict[str, str]]) -> tuple[list[int], list[tuple[int, int]]]:
        tokens: list[int] = []
        spans: list[tuple[int, int]] = []
        open_ = False
        for ids, number in self._codec.chat_pieces(messages, answer=False):
            if open_:  # the template's text after an answer: the end token of the turn belongs to the answer
                length = next((at for at, token in enumerate(ids, start=1) if token in self._ends), 0)
                spans[-1] = (spans[-1][0], spans[-1][1] + length)
            open_ = number is not None and messages[number]["role"] == "assistant"
            if open_:
                spans.append((len(tokens), len(tokens) + len(ids)))
            tokens += ids
        return tokens, spans


def as_messages(value: object) -> list[dict[str, str]]:
    """The value as messages with role and content. DataError says what is wrong with it."""
    if not isinstance(value, list):
        raise DataError(f"'messages' is {_kind(value)}, a list of messages is expected")
    if not value:
        raise DataError("'messages' is an empty list, at least one message is expected")
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict):
            raise DataError(f"message {number} is {_kind(message)}, an object with role and content is expected")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise DataError(f"message {number}: {key!r} is {_kind(message.get(key))}, text is expected")
    if all(message["role"] != "assistant" for message in value):
        raise DataError("no message has the role 'assistant', so there is nothing to learn")
    return value


def _text(value: dict[str, Any], key: str) -> str:
    text = value.get(key)
    if not isinstance(text, str):
        raise DataError(f"{key!r} is {_kind(text)}, text is expected")
    return text


def _keys(value: dict[str, Any]) -> str:
    return f"the keys are {', '.join(sorted(value))}" if value else "the object is empty"


def _kind(value: object) -> str:
    names = {list: "a list", dict: "an object", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "not there" if value is None else names[type(value)]


def windows(tokens: Sequence[int], spans: Iterable[tuple[int, int]], limits: Limits) -> Iterator[Example]:
    """Examples of the spans, cut at the borders of blocks. There is none behind `max_length`."""
    for start, end in spans:
        whole = end <= limits.max_length
        last = end if whole else limits.max_length // limits.block * limits.block
        width = max(1, limits.window // limits.block) * limits.block
        borders = [start, *range(start // limits.block * limits.block + width, last, width), last]
        yield from (Example(tokens, *pair) for pair in pairwise(borders) if pair[0] < pair[1])
