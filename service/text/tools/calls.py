"""Tools, calls of tools, and the messages of a conversation with calls.

The routes make them from the fields of their bodies. This module knows no route.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Final, Literal

from service.errors import InvalidRequest

#: none: no call; auto: a call or an answer; required: one call at least
ToolChoiceMode = Literal["none", "auto", "required"]

#: names that every format holds as they are, such as `mcp:read`: letters of any script, and nothing to be escaped
_HELD: Final = re.compile(r"(?! )[\w ./:@+-]{1,128}(?<! )")
_OTHERS: Final = re.compile(r"[^A-Za-z0-9_.-]+")
MAX_TOOLS: Final = 256


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

        A type that excludes objects is wrong: InvalidRequest if the tool is strict, else it is ignored.
        """
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        if self.strict and not self.takes_objects:
            types = str(self.parameters["type"])
            raise InvalidRequest(
                f"the parameters of the tool {self.name!r} have the type {types[:80]!r}, allowed is 'object'",
                param="tools",
            )
        return {**self.parameters, "type": "object"}

    @property
    def takes_objects(self) -> bool:
        """Whether its schema allows objects."""
        types = (self.parameters or {}).get("type")
        return types is None or types == "object" or (isinstance(types, list) and "object" in types)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made. `arguments`: JSON text, incomplete if the answer was cut off."""

    id: str
    name: str
    arguments: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that an answer may call.

    Of two tools with one name, a call fits the schema of either. InvalidRequest if names are not among the tools.
    """

    tools: tuple[Tool, ...]
    choice: ToolChoiceMode = "auto"
    among: tuple[str, ...] = ()  # the only allowed names, all if empty
    parallel: bool = True  # whether several calls are allowed

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if len(names) > MAX_TOOLS:
            raise InvalidRequest(f"tools has {len(names)} tools, allowed are {MAX_TOOLS}", param="tools")
        for name in self.among:
            if name not in names:
                raise InvalidRequest(
                    f"tool_choice names {name[:140]!r}, which is none of the tools", param="tool_choice"
                )
        if self.choice == "required" and not names:
            raise InvalidRequest("tool_choice asks for a call, and there are no tools", param="tool_choice")

    @property
    def model_names(self) -> dict[str, str]:
        """A tool's name -> its name in the prompt and in the model's calls."""
        return _held_names(tool.name for tool in self.tools)

    @property
    def callable(self) -> tuple[Tool, ...]:
        if self.choice == "none":
            return ()
        return tuple(tool for tool in self.tools if not self.among or tool.name in self.among)


def _held_names(names: Iterable[str]) -> dict[str, str]:
    """Names that calls can hold. A name with a quote, a mark or a line end, an empty or a long one gets another."""
    distinct = dict.fromkeys(names)
    held = {name: name for name in distinct if _HELD.fullmatch(name)}
    taken = set(held)
    for name in (name for name in distinct if name not in held):
        plain = _OTHERS.sub("_", name).strip("_")[:100] or "tool"
        numbered = (f"{plain}_{number}" for number in count(2))
        held[name] = next(made for made in chain([plain], numbered) if made not in taken)
        taken.add(held[name])
    return held


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
