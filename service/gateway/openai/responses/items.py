"""The items of `input`: messages, calls of tools, their results, thinking. Chat templates get them as messages.

Items of the assistant that follow each other are one message: what was thought, said and called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from service.errors import InvalidRequest
from service.text.tools import assistant_message, parse_arguments, tool_message


class _Item(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Part(_Item):
    """A part of a content. Other fields, such as `annotations`, are ignored."""

    type: Literal["input_text", "output_text", "text"]
    text: str


def _parts_of(content: object) -> object:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


Parts = Annotated[
    list[Part], Field(fail_fast=True), BeforeValidator(_parts_of, json_schema_input_type=str | list[Part])
]


class MessageItem(_Item):
    """A message. `type` may be left out."""

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class CallItem(_Item):
    """A call of a tool that the model made. `arguments`: a JSON object as text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResultItem(_Item):
    """What a tool answered to a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts


class ThoughtPart(_Item):
    """A part of thinking."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(_Item):
    """What the model thought before. Summaries are ignored."""

    type: Literal["reasoning"]
    content: Annotated[list[ThoughtPart], Field(fail_fast=True)] | None = None


def _with_type(item: object) -> object:
    return {"type": "message", **item} if isinstance(item, Mapping) and item.get("type") is None else item


class Untyped(_Item):
    """A message without `type`, for the documentation."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


_Typed = MessageItem | CallItem | ResultItem | ReasoningItem
Item = Annotated[
    Annotated[_Typed, Field(discriminator="type")],
    BeforeValidator(_with_type, json_schema_input_type=_Typed | Untyped),
]


@dataclass(slots=True)
class _Turn:
    """The assistant's items that follow each other."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)

    def taken(self) -> Iterator[dict[str, Any]]:
        """The message of these items, if there are any. They are gone then."""
        if self.texts or self.calls:
            yield assistant_message("\n".join(self.texts), self.calls, "\n".join(self.thoughts))
        self.texts, self.thoughts, self.calls = [], [], []


def for_template(instructions: str | None, items: Sequence[Item]) -> tuple[dict[str, Any], ...]:
    """The items as chat templates take them. InvalidRequest: no message, bad arguments, or a result of no call."""
    made: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    turn, called = _Turn(), dict[str, str]()
    for number, item in enumerate(items):
        match item:
            case ReasoningItem():
                turn.thoughts += [part.text for part in item.content or ()]
            case CallItem():
                called[item.call_id] = item.name
                turn.calls.append(
                    (item.call_id, item.name, parse_arguments(item.arguments, f"input.{number}.arguments"))
                )
            case MessageItem(role="assistant"):
                turn.texts.append(_text(item.content))
            case MessageItem():
                made += turn.taken()
                made.append(
                    {"role": "system" if item.role == "developer" else item.role, "content": _text(item.content)}
                )
            case ResultItem():
                made += turn.taken()
                if item.call_id not in called:
                    raise InvalidRequest(
                        f"input.{number}.call_id is {item.call_id[:80]!r}, no call before has this id; send the whole "
                        "conversation, since no response is stored",
                        param=f"input.{number}.call_id",
                    )
                made.append(tool_message(item.call_id, called[item.call_id], _text(item.output)))
    made += turn.taken()
    if not made:
        raise InvalidRequest("input has no message", param="input")
    return tuple(made)


def _text(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts)
