"""Tools, calls of tools, and the messages of a conversation with calls.

The routes make them from the fields of their bodies. This module knows no route.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from service.errors import InvalidRequest

#: none: no call; auto: a call or an answer; required: one call at least
ToolChoiceMode = Literal["none", "auto", "required"]

#: OpenAI allows 64 characters of these, Anthropic 128; nothing in a name has to be escaped in any format
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
MAX_TOOLS: Final = 256

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str | None = field(default=None, repr=False)
    parameters: Mapping[str, Any] | None = field(default=None, repr=False)  # the JSON schema of its arguments, if any
    strict: bool = False  # whether every keyword of the schema must hold
    param: str = "tools"  # the request's field with the schema

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        optional = {"description": self.description, "parameters": self.parameters}
        fields = {name: value for name, value in optional.items() if value is not None}
        return {"type": "function", "function": {"name": self.name, **fields}}

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments, which are always an object.

        A type that excludes objects is wrong: InvalidRequest if the tool is strict, else any object is allowed.
        """
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        types = self.parameters.get("type")
        if types is None or types == "object" or (isinstance(types, list) and "object" in types):
            return {**self.parameters, "type": "object"}
        if self.strict:
            raise InvalidRequest(
                f"the parameters of the tool {self.name!r} have the type {str(types)[:80]!r}, allowed is 'object'",
                param="tools",
            )
        _log.warning("a tool's parameters are of a type without objects, and are not enforced")
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made. `arguments`: JSON text, incomplete if the answer was cut off."""

    id: str
    name: str
    arguments: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that an answer may call.

    Of two tools with one name, a call fits the schema of either. InvalidRequest if names are not allowed, or not among
    the tools.
    """

    tools: tuple[Tool, ...]
    choice: ToolChoiceMode = "auto"
    among: tuple[str, ...] = ()  # the only allowed names, all if empty
    parallel: bool = True  # whether several calls are allowed

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if len(names) > MAX_TOOLS:
            raise InvalidRequest(f"tools has {len(names)} tools, allowed are {MAX_TOOLS}", param="tools")
        for name in names:
            if not _NAME.fullmatch(name):
                allowed = "1 to 128 letters, digits, '_', '-' and '.'"
                raise InvalidRequest(f"a tool's name is {name[:140]!r}, allowed are {allowed}", param="tools")
        for name in self.among:
            if name not in names:
                raise InvalidRequest(
                    f"tool_choice names {name[:140]!r}, which is none of the tools", param="tool_choice"
                )
        if self.choice == "required" and not names:
            raise InvalidRequest("tool_choice asks for a call, and there are no tools", param="tool_choice")

    @property
    def callable(self) -> tuple[Tool, ...]:
        if self.choice == "none":
            return ()
        return tuple(tool for tool in self.tools if not self.among or tool.name in self.among)


def assistant_message(
    content: str, calls: Sequence[tuple[str, str, Mapping[str, Any]]] = (), reasoning: str = ""
) -> dict[str, Any]:
    """An assistant's message as chat templates take it. `calls`: the id, name and arguments of each."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
            for call_id, name, arguments in calls
        ]
    return message


def tool_message(call_id: str, name: str, content: str) -> dict[str, Any]:
    """A tool's answer as chat templates take it. `name`: the tool's name."""
    return {"role": "tool", "content": content, "tool_call_id": call_id, "name": name}
