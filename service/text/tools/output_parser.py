"""Parses an answer's text as it comes: reasoning, content, calls of tools (vLLM's reasoning parser and tool parser).

The text may be cut anywhere. Text that may begin a mark is held back, and so is white space before a mark. Each letter
is looked at a few times at most. The routes push each block of an answer. After a failover the text goes on, and so
does the parser.
"""

import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from service.text.tools.calls import ToolCall
from service.text.tools.formats import REASONING_END, REASONING_START, TOOL_FORMATS, AnswerFormat, ToolFormat

#: the longest text before the arguments that may be a tool's name; a request's tools have shorter names
_MAX_NAME = 256
#: in a JSON object: the letters that change the depth or begin a text; within a text, its end and escapes
_OUTSIDE_TEXT: Final = re.compile(r'[{}\[\]"]')
_WITHIN_TEXT: Final = re.compile(r'\\.?|"', re.DOTALL)


# --- events, in the order of the answer's text ----------------------------------------------------------


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
    """A whole answer. `reasoning`: empty without reasoning. `called`: whether there is a call, and all are complete."""

    content: str = field(repr=False)
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = field(default="", repr=False)
    called: bool = False


def collect(events: Iterable[OutputEvent]) -> ParsedOutput:
    """The answer of all events."""
    content, reasoning, names, arguments = "", "", list[tuple[str, str]](), list[str]()
    ended = 0
    for event in events:
        match event:
            case ContentDelta(text):
                content += text
            case ReasoningDelta(text):
                reasoning += text
            case ToolCallStart(_, call_id, name):
                names.append((call_id, name))
                arguments.append("")
            case ToolCallDelta(index, text):
                arguments[index] += text
            case ToolCallEnd():
                ended += 1
    calls = tuple(ToolCall(call_id, name, text) for (call_id, name), text in zip(names, arguments, strict=True))
    return ParsedOutput(content, calls, reasoning, 0 < ended == len(calls))


# --- the parser -------------------------------------------------------------------------------------


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def parse_output(answer_format: AnswerFormat, text: str, new_id: Callable[[], str] = _call_id) -> ParsedOutput:
    """Parses a whole answer."""
    parser = OutputParser(answer_format, new_id)
    return collect([*parser.push(text), *parser.finish()])


class OutputParser:
    """Parses one answer. `new_id`: makes the ids of calls."""

    def __init__(self, answer_format: AnswerFormat, new_id: Callable[[], str] = _call_id) -> None:
        self._format = TOOL_FORMATS[answer_format.format] if answer_format.format else None
        self._new_id, self._names = new_id, answer_format.names
        states = {"no": self._content, "may": self._before_reasoning, "begun": self._reasoning}
        self._state: Callable[[], bool] = states[answer_format.thinking]
        self._text, self._events = "", list[OutputEvent]()
        self._space = list[str]()  # white space that came before `_text` and may stand before a mark
        self._at_start, self._last = True, False  # no text of this state yet; no more text comes
        self._num_started = self._num_calls = 0
        self._object = _JsonObject()

    @property
    def called(self) -> bool:
        """Whether there is a call, and all are complete."""
        return 0 < self._num_started == self._num_calls

    def push(self, text: str) -> list[OutputEvent]:
        """The events that are certain after this text."""
        self._text += text
        return self._parse()

    def finish(self) -> list[OutputEvent]:
        """The last events, at the end of the answer. A call that was cut off before its arguments is left out."""
        self._last = True
        return self._parse()

    def _parse(self) -> list[OutputEvent]:
        while self._state():
            pass
        events, self._events = self._events, []
        return events

    # --- states: each consumes the certain text, and returns whether another state goes on ------------

    def _before_reasoning(self) -> bool:
        text = self._text.lstrip()
        if text.startswith(REASONING_START):
            self._with_space("")
            return self._go(self._reasoning, text[len(REASONING_START) :])
        if self._last or not REASONING_START.startswith(text):
            return self._go(self._content, self._with_space(self._text))
        self._space.append(self._text[: len(self._text) - len(text)])
        self._text = text
        return False

    def _reasoning(self) -> bool:
        if self._at_start:
            self._text = self._text.lstrip("\n")
        reasoning, ended, after = self._up_to(REASONING_END, "\n")
        self._emit(ReasoningDelta, reasoning)
        return self._go(self._after_reasoning, after) if ended else False

    def _after_reasoning(self) -> bool:
        self._text = self._text.lstrip("\n")
        return self._go(self._content, self._text) if self._text else False

    def _content(self) -> bool:
        if self._format is None:
            self._emit(ContentDelta, self._text)
            self._text = ""
            return False
        content, ended, after = self._up_to(self._format.opening, None)
        self._emit(ContentDelta, content)
        return self._go(self._before_name, after) if ended else False

    def _before_name(self) -> bool:
        return self._literal(self._call_format.before_name, self._name, self._call_format.opening)

    def _name(self) -> bool:
        name, mark, arguments = self._text.partition(self._call_format.after_name)
        if not mark:
            before = self._call_format.opening + self._call_format.before_name
            return self._no_call(before) if len(name) > _MAX_NAME else False
        self._events.append(ToolCallStart(self._num_calls, self._new_id(), self._names.get(name, name)))
        self._num_started += 1
        self._object = _JsonObject()
        return self._go(self._arguments, arguments)

    def _arguments(self) -> bool:
        length = self._object.push(self._text)
        if length:
            self._events.append(ToolCallDelta(self._num_calls, self._text[:length]))
        self._text = self._text[length:]
        return self._go(self._tail, self._text) if self._object.ended else False

    def _tail(self) -> bool:
        return self._literal(self._call_format.tail, self._call_end, "")

    def _call_end(self) -> bool:
        self._events.append(ToolCallEnd(self._num_calls))
        self._num_calls += 1
        return self._go(self._after_call, self._text)

    def _after_call(self) -> bool:
        between = self._call_format.between
        if self._text.startswith(between):
            return self._go(self._before_name, self._text[len(between) :])
        if between.startswith(self._text) and not self._last:
            return False
        return self._go(self._after_calls, self._text)

    def _after_calls(self) -> bool:
        self._text = self._text.lstrip()
        return self._go(self._content, self._text) if self._text else False

    # --- helpers --------------------------------------------------------------------------------------

    @property
    def _call_format(self) -> ToolFormat:
        if self._format is None:
            raise AssertionError("a call without a format")
        return self._format

    def _go(self, state: Callable[[], bool], text: str) -> bool:
        self._state, self._text, self._at_start = state, text, True
        return True

    def _emit(self, kind: Callable[[str], OutputEvent], text: str) -> None:
        if text:
            self._events.append(kind(text))
            self._at_start = False

    def _literal(self, expected: str, state: Callable[[], bool], before: str) -> bool:
        """Goes on after the expected text. Any other text is content, and so is `before`, the call's text so far."""
        if self._text.startswith(expected):
            return self._go(state, self._text[len(expected) :])
        return False if expected.startswith(self._text) else self._no_call(before)

    def _no_call(self, before: str) -> bool:
        self._emit(ContentDelta, before)
        return self._go(self._content, self._text)

    def _up_to(self, mark: str, space: str | None) -> tuple[str, bool, str]:
        """(the text before a mark, whether the mark is there, the text after it). White space before it is dropped.

        Without the mark, the first text is the certain text, and text that may belong to the mark is held back.
        `space`: the letters that are white space.
        """
        before, separator, after = self._text.partition(mark)
        if separator:
            before = before.rstrip(space)
            held = self._with_space("")
            return held + before if before else "", True, after
        body = self._text if self._last else self._text[: -_beginning_at_end(self._text, mark) or None]
        self._text = self._text[len(body) :]
        certain = body if self._last else body.rstrip(space)
        text = self._with_space(certain) if certain or self._last else ""
        self._space.append(body[len(certain) :])
        return text, False, ""

    def _with_space(self, text: str) -> str:
        """The text after the white space that was held back, which is held back no longer."""
        text = "".join((*self._space, text))
        self._space.clear()
        return text


def _beginning_at_end(text: str, mark: str) -> int:
    """The length of the longest beginning of the mark that the text ends with."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)


class _JsonObject:
    """Finds the end of a JSON object in a text that comes in pieces, from the object's first brace on.

    Does not parse its values. `ended`: whether the text has the object's last brace.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = self._escaped = False
        self.ended = False

    def push(self, text: str) -> int:
        """The length of the object's part of the next text."""
        at = 0
        if self._escaped and text:
            at, self._escaped = 1, False
        while not self.ended and (match := (_WITHIN_TEXT if self._in_text else _OUTSIDE_TEXT).search(text, at)):
            at = match.end()
            self._step(match[0])
        return at if self.ended else len(text)

    def _step(self, letters: str) -> None:
        if letters == '"':
            self._in_text = not self._in_text
        elif self._in_text:
            self._escaped = letters == "\\"  # the letter after it is in the next piece
        else:
            self._depth += 1 if letters in "{[" else -1
            self.ended = self._depth <= 0
