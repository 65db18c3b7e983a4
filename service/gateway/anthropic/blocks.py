"""The content of a message as Anthropic's blocks and the events of its stream: text, thinking, calls of tools.

An `OutputParser` tells the parts of an answer. A new block begins where the kind of the parts changes. Whole messages
are made of the same events as streams.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_core import from_json

from service.text.tools import (
    AnswerFormat,
    ContentDelta,
    OutputEvent,
    OutputParser,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStart,
)

Json = dict[str, Any]

#: of each kind of block: the field that pieces extend, the kind of a piece, its field
_PIECES = {
    "text": ("text", "text_delta", "text"),
    "thinking": ("thinking", "thinking_delta", "thinking"),
    "tool_use": ("input", "input_json_delta", "partial_json"),
}


class Blocks:
    """The blocks of one message. `called`: whether it has calls, all of them complete."""

    def __init__(self, reading: AnswerFormat) -> None:
        self._reader = OutputParser(reading, lambda: f"toolu_{secrets.token_hex(12)}")
        self._kind: str | None = None
        self._count = 0

    @property
    def called(self) -> bool:
        """Whether the message has calls, and all of them are complete."""
        return self._reader.called

    def push(self, text: str) -> Iterator[Json]:
        """The events that the next piece of the answer's text leads to."""
        return self._told(self._reader.push(text))

    def finish(self) -> Iterator[Json]:
        """The last events."""
        yield from self._told(self._reader.finish())
        yield from self._end()

    def _told(self, events: Iterable[OutputEvent]) -> Iterator[Json]:
        for event in events:
            match event:
                case ContentDelta(text):
                    yield from self._piece("text", text, {"text": ""})
                case ReasoningDelta(text):
                    yield from self._piece("thinking", text, {"thinking": "", "signature": ""})
                case ToolCallStart(_, call, name):
                    yield from self._end()
                    yield self._begin("tool_use", {"id": call, "name": name, "input": {}})
                case ToolCallDelta(_, text):
                    yield self._delta("tool_use", text)

    def _piece(self, kind: str, text: str, empty: Json) -> Iterator[Json]:
        if self._kind != kind:
            yield from self._end()
            yield self._begin(kind, empty)
        yield self._delta(kind, text)

    def _begin(self, kind: str, block: Json) -> Json:
        self._kind = kind
        return {"type": "content_block_start", "index": self._count, "content_block": {"type": kind, **block}}

    def _delta(self, kind: str, text: str) -> Json:
        _, piece, field = _PIECES[kind]
        return {"type": "content_block_delta", "index": self._count, "delta": {"type": piece, field: text}}

    def _end(self) -> Iterator[Json]:
        if self._kind is not None:
            yield {"type": "content_block_stop", "index": self._count}
            self._kind, self._count = None, self._count + 1


def blocks_of(events: Iterable[Json]) -> list[Json]:
    """The blocks that events make. The input of a call that was cut has what was complete."""
    blocks: list[Json] = []
    texts: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
            texts.append("")
        elif event["type"] == "content_block_delta":
            texts[-1] += event["delta"][_PIECES[blocks[-1]["type"]][2]]
    for block, text in zip(blocks, texts, strict=True):
        field = _PIECES[block["type"]][0]
        block[field] = _input(text) if field == "input" else text
    return blocks


def _input(text: str) -> Json:
    try:
        value = from_json(text or "{}", allow_partial=True)
    except ValueError:  # cut within an escape
        return {}
    return value if isinstance(value, dict) else {}
