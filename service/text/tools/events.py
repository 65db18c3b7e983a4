"""The events of an `OutputParser`, in the order of the answer's text, and the whole answer that they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from service.text.tools.calls import ToolCall


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the reasoning before the answer."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """A piece of the answer itself."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call of a tool begins. `index`: 0 for the first call of the answer. Its arguments follow in pieces."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a call's arguments. The joined pieces are JSON."""

    index: int
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is complete. A call that was cut off has no such event."""

    index: int


OutputEvent = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallDelta | ToolCallEnd


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A whole answer. `thought`: empty without reasoning. `called`: whether there is a call, and all are complete."""

    content: str = field(repr=False)
    calls: tuple[ToolCall, ...] = ()
    thought: str = field(default="", repr=False)
    called: bool = False


def collect(events: Iterable[OutputEvent]) -> ParsedOutput:
    """The answer of all events."""
    content, thought, names, arguments = "", "", list[tuple[str, str]](), list[str]()
    ended = 0
    for event in events:
        match event:
            case ContentDelta(text):
                content += text
            case ReasoningDelta(text):
                thought += text
            case ToolCallStart(_, call_id, name):
                names.append((call_id, name))
                arguments.append("")
            case ToolCallDelta(index, text):
                arguments[index] += text
            case ToolCallEnd():
                ended += 1
    calls = tuple(ToolCall(call_id, name, text) for (call_id, name), text in zip(names, arguments, strict=True))
    return ParsedOutput(content, calls, thought, 0 < ended == len(calls))
