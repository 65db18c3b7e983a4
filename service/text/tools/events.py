"""What an `AnswerReader` tells of an answer, in the order of its text."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the thinking before the answer."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """A piece of the answer itself."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a tool begins. `index`: 0 for the first call of the answer. Its arguments follow in pieces."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a call's arguments, which are JSON when joined."""

    index: int
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call is complete. A call that was cut has no such event."""

    index: int


OutputEvent = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | ToolCallEnd
