"""Encodes conversations in pieces: the contents of assistants' messages, and the rest (transformers' assistant mask).

The messages are rendered a second time with marks in the assistants' contents. The marks show where the contents are.
The second text without its marks must equal the first one. Then the marks did not change the work of the template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from jinja2 import Environment

from service.errors import InvalidRequest
from service.text import TextCodec
from service.text.template import ChatTemplate, Messages

#: marks are private-use characters of this range, one for each message
_MARKS: Final = range(0xF0000, 0x10FFFE)

#: (mark, its index in the text without marks)
_MarkIndices = list[tuple[str, int]]


class ChatCodec:
    """A checkpoint's tokenizer and chat template, as `conversations.Codec`."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec

    @classmethod
    def load(cls, folder: Path) -> ChatCodec:
        """As `TextCodec.load`."""
        return cls(TextCodec.load(folder))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        return self._codec.encode(text)

    def chat_pieces(self, messages: Messages, *, answer: bool = True) -> list[tuple[list[int], int | None]]:
        """The ids of a chat in segments: (ids, index of the assistant's message, or None).

        An assistant's content begins and ends with a whole token, as it does when it is decoded. `answer`: whether the
        template writes the beginning of an answer after the last message.
        """
        encode, rendered = self._codec.encode_rendered, self._codec.template.render(messages, answer=answer)
        pieces: list[tuple[list[int], int | None]] = []
        end = 0
        for span in assistant_spans(self._codec.template, messages, rendered, answer=answer):
            pieces.append((encode(rendered[end : span.start]), None))
            pieces.append((encode(rendered[span.start : span.end]), span.message))
            end = span.end
        return [*pieces, (encode(rendered[end:]), None)]


class Span(NamedTuple):
    """A part of the rendered text that comes from an assistant's message. `message`: the index of the message."""

    message: int
    start: int
    end: int


class _Marking(Protocol):
    """A way to mark contents."""

    def marked(self, content: str, mark: str) -> str:
        """The content with its marks."""

    def spans(self, marks: _MarkIndices, marked: Mapping[str, str], rendered: str) -> list[tuple[str, int, int]] | None:
        """The spans with their marks, None if they cannot be found. `marked`: mark -> content with its marks."""


def assistant_spans(template: ChatTemplate, messages: Messages, rendered: str, *, answer: bool) -> list[Span]:
    """The spans of assistants' contents in the rendered messages, in order.

    A content that the template cuts into parts may have several spans. A content that it leaves out has none.
    InvalidRequest if the template changes contents until their spans cannot be found.
    """
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    texts = [rendered, template.source, *(message["content"] for message in messages)]
    indices = dict(zip(_unused(texts), answers, strict=False))  # the index of the message of each mark
    markings: tuple[_Marking, ...] = (_Ends(), _Letters(template))
    for marking in markings:
        marked = {mark: marking.marked(messages[index]["content"], mark) for mark, index in indices.items()}
        changed = [dict(message) for message in messages]
        for mark, index in indices.items():
            changed[index]["content"] = marked[mark]
        text, positions = _without_marks(template.render(changed, answer=answer), "".join(indices))
        if text == rendered and (spans := marking.spans(positions, marked, rendered)) is not None:
            return [Span(indices[mark], start, end) for mark, start, end in spans]
    raise InvalidRequest("the chat template changes assistants' contents beyond recognition", param="messages")


def _unused(texts: Sequence[str]) -> Iterator[str]:
    """Private-use characters that are in none of the texts."""
    used = set().union(*texts)
    return (letter for letter in map(chr, _MARKS) if letter not in used)


def _without_marks(text: str, marks: str) -> tuple[str, _MarkIndices]:
    parts = re.split(f"([{marks}])", text) if marks else [text]
    indices, length = [], 0
    for part, mark in zip(parts[::2], parts[1::2], strict=False):
        length += len(part)
        indices.append((mark, length))
    return "".join(parts[::2]), indices


class _Ends:
    """Marks before and after a content. Exact, but a template that looks at the ends of contents sees the marks."""

    def marked(self, content: str, mark: str) -> str:
        return f"{mark}{content}{mark}"

    def spans(self, marks: _MarkIndices, marked: Mapping[str, str], rendered: str) -> list[tuple[str, int, int]] | None:  # noqa: ARG002
        starts, ends = marks[::2], marks[1::2]
        if [mark for mark, _ in starts] != [mark for mark, _ in ends]:  # the template dropped one mark of a pair
            return None
        return [(mark, start, end) for (mark, start), (_, end) in zip(starts, ends, strict=True)]


class _Letters:
    """Marks after the letters of a content, except in texts that the template may look for.

    Those are white space, and every quoted text of the template's source. White space at the ends of a content counts
    as part of the template.
    """

    def __init__(self, template: ChatTemplate) -> None:
        tokens = Environment(autoescape=True).lexer.tokenize(template.source)
        quoted = {token.value for token in tokens if token.type == "string" and token.value}
        longest_first = sorted(quoted, key=len, reverse=True)
        self._pattern = re.compile("|".join([*map(re.escape, longest_first), r"(\S)"]))
        self._aliases = template.aliases

    def marked(self, content: str, mark: str) -> str:
        return self._pattern.sub(lambda match: match[0] + mark if match[1] else match[0], content)

    def spans(self, marks: _MarkIndices, marked: Mapping[str, str], rendered: str) -> list[tuple[str, int, int]]:
        spans: list[tuple[str, int, int]] = []
        for mark, index in marks:
            last_mark, start, end = spans[-1] if spans else ("", 0, 0)
            between = rendered[end:index]
            if last_mark == mark and self._aliases.restore(between) == between:
                spans[-1] = (mark, start, index)
            else:
                spans.append((mark, index - 1, index))
        return [_wider(span, marked[span[0]], rendered) for span in spans]


def _wider(span: tuple[str, int, int], marked: str, rendered: str) -> tuple[str, int, int]:
    """The span, extended by the parts of the content before its first mark and after its last one.

    Only letters that the rendered text has there are added.
    """
    mark, start, end = span
    before, after = marked[: marked.index(mark) - 1], marked[marked.rindex(mark) + 1 :]
    start -= _same(reversed(before), reversed(rendered[max(0, start - len(before)) : start]))
    end += _same(after, rendered[end : end + len(after)])
    text = rendered[start:end]
    return mark, end - len(text.lstrip()), start + len(text.rstrip())


def _same(first: Iterable[str], second: Iterable[str]) -> int:
    """The length of the common beginning of two texts."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
