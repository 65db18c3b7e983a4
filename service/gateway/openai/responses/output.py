"""The items of a response's output and the events of its stream: thinking, a message, calls of tools.

An `OutputParser` tells the parts of an answer. A new item begins where the kind of the parts changes. Whole responses
are made of the same items as streams.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any

from service.text.tools import (
    AnswerFormat,
    ContentDelta,
    OutputEvent,
    OutputParser,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)

Json = dict[str, Any]


class Output:
    """The output of one response. `items`: those that are done, in order."""

    def __init__(self, reading: AnswerFormat) -> None:
        self._reader = OutputParser(reading)
        self.items: list[Json] = []
        self._item: Json | None = None
        self._text = ""

    def push(self, text: str) -> Iterator[Json]:
        """The events that the next piece of the answer's text leads to."""
        return self._told(self._reader.push(text))

    def finish(self, *, whole: bool) -> Iterator[Json]:
        """The last events. `whole`: whether the answer ended by itself; an item that was cut is incomplete."""
        yield from self._told(self._reader.finish())
        yield from self._end("completed" if whole else "incomplete")

    def _told(self, events: Iterable[OutputEvent]) -> Iterator[Json]:
        for event in events:
            match event:
                case ContentDelta(text):
                    yield from self._piece("message", text)
                case ReasoningDelta(text):
                    yield from self._piece("reasoning", text)
                case ToolCallStart(_, call, name):
                    yield from self._begin("function_call", call_id=call, name=name, arguments="")
                case ToolCallDelta(_, text):
                    yield self._delta("response.function_call_arguments.delta", text)
                case ToolCallEnd():
                    yield from self._end()

    def _piece(self, kind: str, text: str) -> Iterator[Json]:
        if self._item is None or self._item["type"] != kind:
            own: Json = {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
            yield from self._begin(kind, **own)
            yield self._of_part("response.content_part.added", part=_part(kind, ""))
        name = "output_text" if kind == "message" else "reasoning_text"
        yield self._delta(f"response.{name}.delta", text)

    def _begin(self, kind: str, **fields: Any) -> Iterator[Json]:
        yield from self._end()
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        self._item = {"id": f"{prefix}_{secrets.token_hex(12)}", "type": kind, "status": "in_progress", **fields}
        self._text = ""
        yield self._event("response.output_item.added", item=dict(self._item))

    def _end(self, status: str = "completed") -> Iterator[Json]:
        """Ends the item under way, if there is one."""
        if (item := self._item) is None:
            return
        kind, text = item["type"], self._text
        if kind == "function_call":
            done = {"arguments": text, "name": item["name"], "item_id": item["id"]}
            yield self._event("response.function_call_arguments.done", **done)
            item["arguments"] = text
        else:
            part = _part(kind, text)
            name = "output_text" if kind == "message" else "reasoning_text"
            yield self._of_part(f"response.{name}.done", text=text, **_logprobs(kind))
            yield self._of_part("response.content_part.done", part=part)
            item["content"] = [part]
        item["status"] = status
        yield self._event("response.output_item.done", item=dict(item))
        self.items.append(item)
        self._item = None

    def _delta(self, kind: str, text: str) -> Json:
        self._text += text
        if self._item is not None and self._item["type"] == "function_call":
            return self._event(kind, item_id=self._item["id"], delta=text)
        return self._of_part(kind, delta=text, **_logprobs("message" if "output_text" in kind else ""))

    def _of_part(self, kind: str, **fields: Any) -> Json:
        return self._event(kind, item_id=self._item["id"] if self._item else "", content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, "output_index": len(self.items), **fields}


def _part(kind: str, text: str) -> Json:
    if kind == "message":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": text}


def _logprobs(kind: str) -> Json:
    return {"logprobs": []} if kind == "message" else {}
