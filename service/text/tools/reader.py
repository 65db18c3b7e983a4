"""Reads an answer's text as it comes: thinking, content, calls of tools.

The text may be cut anywhere. What may be the beginning of a mark is held back, and so is white space before a mark.
Each letter is looked at a few times, however much is held back.
The routes ask it for each block of an answer. After a failover the text goes on, and so does the reader.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from service.text.tools.calls import ToolCall
from service.text.tools.events import (
    ContentDelta,
    OutputEvent,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from service.text.tools.formats import ToolFormat, format_named
from service.text.tools.json_object import JsonObject
from service.text.tools.thinking import BEGIN, END

#: a longer name is none that a request may have
_LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How answers to a request are read.

    `format`: the name of the format of calls, None if none may come. `thinking`: whether the answer may begin with
    thinking, or begins within it.
    """

    format: str | None = None
    thinking: Literal["no", "may", "begun"] = "no"

    @property
    def plain(self) -> bool:
        """Whether answers are nothing but content."""
        return self.format is None and self.thinking == "no"


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class OutputParser:
    """Reads one answer. `new_id`: makes the ids of calls."""

    def __init__(self, reading: OutputFormat, new_id: Callable[[], str] = _call_id) -> None:
        self._format = format_named(reading.format) if reading.format else None
        self._new_id = new_id
        states = {"no": self._content, "may": self._before_thinking, "begun": self._thinking}
        self._state: Callable[[], bool] = states[reading.thinking]
        self._text, self._events = "", list[OutputEvent]()
        self._space = list[str]()  # white space that came before `_text` and may stand before a mark
        self._fresh, self._last = True, False  # nothing yet of this part; no more text comes
        self._begun = self._calls = 0
        self._object = JsonObject()

    @property
    def called(self) -> bool:
        """Whether there is a call, and none was cut."""
        return 0 < self._begun == self._calls

    def push(self, text: str) -> list[OutputEvent]:
        """What is certain after this text."""
        self._text += text
        return self._read()

    def finish(self) -> list[OutputEvent]:
        """The rest, at the end of the answer. A call that was cut before its arguments is left out."""
        self._last = True
        return self._read()

    def _read(self) -> list[OutputEvent]:
        while self._state():
            pass
        events, self._events = self._events, []
        return events

    # --- states: each takes of the text what is certain, and says whether another state goes on -------

    def _before_thinking(self) -> bool:
        begun = self._text.lstrip()
        if begun.startswith(BEGIN):
            self._spaced("")
            return self._go(self._thinking, begun[len(BEGIN) :])
        if self._last or not BEGIN.startswith(begun):
            return self._go(self._content, self._spaced(self._text))
        self._space.append(self._text[: len(self._text) - len(begun)])
        self._text = begun
        return False

    def _thinking(self) -> bool:
        if self._fresh:
            self._text = self._text.lstrip("\n")
        thought, ended, rest = self._up_to(END, "\n")
        self._tell(ReasoningDelta, thought)
        return self._go(self._after_thinking, rest) if ended else False

    def _after_thinking(self) -> bool:
        self._text = self._text.lstrip("\n")
        return self._go(self._content, self._text) if self._text else False

    def _content(self) -> bool:
        if self._format is None:
            self._tell(ContentDelta, self._text)
            self._text = ""
            return False
        content, ended, rest = self._up_to(self._format.opening, None)
        self._tell(ContentDelta, content)
        return self._go(self._before_name, rest) if ended else False

    def _before_name(self) -> bool:
        return self._literal(self._called.before_name, self._name, self._called.opening)

    def _name(self) -> bool:
        name, after, rest = self._text.partition(self._called.after_name)
        if not after:
            return (
                self._no_call(self._called.opening + self._called.before_name) if len(name) > _LONGEST_NAME else False
            )
        self._events.append(ToolCallStart(self._calls, self._new_id(), name))
        self._begun += 1
        self._object = JsonObject()
        return self._go(self._arguments, rest)

    def _arguments(self) -> bool:
        length = self._object.take(self._text)
        if length:
            self._events.append(ToolCallDelta(self._calls, self._text[:length]))
        self._text = self._text[length:]
        return self._go(self._tail, self._text) if self._object.ended else False

    def _tail(self) -> bool:
        return self._literal(self._called.tail, self._call_ended, "")

    def _call_ended(self) -> bool:
        self._events.append(ToolCallEnd(self._calls))
        self._calls += 1
        return self._go(self._after_call, self._text)

    def _after_call(self) -> bool:
        between, closing = self._called.between, self._called.closing
        if self._text.startswith(between):
            return self._go(self._before_name, self._text[len(between) :])
        if between.startswith(self._text) and not self._last:
            return False
        if closing.startswith(self._text) and len(self._text) < len(closing) and not self._last:
            return False
        return self._go(self._after_calls, self._text.removeprefix(closing))

    def _after_calls(self) -> bool:
        self._text = self._text.lstrip()
        return self._go(self._content, self._text) if self._text else False

    # --- helpers --------------------------------------------------------------------------------------

    @property
    def _called(self) -> ToolFormat:
        if self._format is None:
            raise AssertionError("a call without a format")
        return self._format

    def _go(self, state: Callable[[], bool], text: str) -> bool:
        self._state, self._text, self._fresh = state, text, True
        return True

    def _tell(self, kind: Callable[[str], OutputEvent], text: str) -> None:
        if text:
            self._events.append(kind(text))
            self._fresh = False

    def _literal(self, expected: str, state: Callable[[], bool], before: str) -> bool:
        """Goes on after the expected text. Anything else is content. `before`: what was taken for a call."""
        if self._text.startswith(expected):
            return self._go(state, self._text[len(expected) :])
        return False if expected.startswith(self._text) else self._no_call(before)

    def _no_call(self, before: str) -> bool:
        self._tell(ContentDelta, before)
        return self._go(self._content, self._text)

    def _up_to(self, mark: str, space: str | None) -> tuple[str, bool, str]:
        """The text before a mark, whether the mark is there, and the text after it. White space before it is dropped.

        Without the mark, the text is what is certain, and what may belong to the mark is kept. `space`: the letters
        that are white space.
        """
        before, found, after = self._text.partition(mark)
        if found:
            before = before.rstrip(space)
            held = self._spaced("")
            return held + before if before else "", True, after
        body = self._text if self._last else self._text[: -_begun(self._text, mark) or None]
        self._text = self._text[len(body) :]
        certain = body if self._last else body.rstrip(space)
        told = self._spaced(certain) if certain or self._last else ""
        self._space.append(body[len(certain) :])
        return told, False, ""

    def _spaced(self, text: str) -> str:
        """The text after the white space that was held back, of which nothing is held any more."""
        text = "".join((*self._space, text))
        self._space.clear()
        return text


def _begun(text: str, mark: str) -> int:
    """The length of the longest beginning of the mark that the text ends with."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A whole answer. `thought`: empty without thinking. `called`: whether there is a call, and none was cut."""

    content: str = field(repr=False)
    calls: tuple[ToolCall, ...] = ()
    thought: str = field(default="", repr=False)
    called: bool = False


def gathered(events: Iterable[OutputEvent]) -> ParsedOutput:
    """The answer that events tell of."""
    content, thought, names, arguments = "", "", list[tuple[str, str]](), list[str]()
    ended: int = 0
    for event in events:
        match event:
            case ContentDelta(text):
                content += text
            case ReasoningDelta(text):
                thought += text
            case ToolCallStart(_, call, name):
                names.append((call, name))
                arguments.append("")
            case ToolCallDelta(index, text):
                arguments[index] += text
            case ToolCallEnd():
                ended += 1
    calls = tuple(ToolCall(call, name, text) for (call, name), text in zip(names, arguments, strict=True))
    return ParsedOutput(content, calls, thought, 0 < ended == len(calls))


def parse_output(reading: OutputFormat, text: str, new_id: Callable[[], str] = _call_id) -> ParsedOutput:
    """Reads a whole answer."""
    reader = OutputParser(reading, new_id)
    return gathered([*reader.push(text), *reader.finish()])
