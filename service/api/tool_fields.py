"""The fields of a body that give tools: what cannot be served is left out by name, and leaves the others alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from service.api.fields import IgnoredFields
from service.api.parse import with_types_served
from service.constraints.json_text import read_json


def with_tools_served(
    body: Mapping[str, Any], kinds: Sequence[str], schema: Sequence[str], ignored: IgnoredFields
) -> Mapping[str, Any]:
    """A body whose tools are of the served kinds, and whose schemas are objects.

    `schema`: the path of a tool's schema. A schema that is none allows any arguments. A strict request keeps all, to be
    refused.
    """
    body = with_types_served(body, "tools", kinds, ignored)
    if ignored.strict:
        return body
    if isinstance(tools := body.get("tools"), list):
        body = {**body, "tools": [_with_schema(tool, schema, "tools", ignored) for tool in tools]}
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        body = {**body, "tool_choice": _with_served(choice, kinds, ignored)}
    return body


def _with_served(choice: Mapping[str, Any], kinds: Sequence[str], ignored: IgnoredFields) -> Mapping[str, Any]:
    """A choice among tools of the served kinds. Chats have the tools one level below."""
    if isinstance(below := choice.get("allowed_tools"), Mapping):
        return {**choice, "allowed_tools": with_types_served(below, "tools", kinds, ignored)}
    return with_types_served(choice, "tools", kinds, ignored)


def _with_schema(tool: Any, path: Sequence[str], name: str, ignored: IgnoredFields) -> Any:
    """A tool with an object at the path, which may be its JSON text."""
    if not isinstance(tool, Mapping) or (value := tool.get(path[0])) is None:
        return tool
    name = f"{name}.{path[0]}"
    if len(path) > 1:
        return {**tool, path[0]: _with_schema(value, path[1:], name, ignored)}
    schema = _read(value)
    if not isinstance(schema, Mapping):
        if tool.get("strict") is True:
            return tool
        ignored.add(name)
        schema = {}
    return {**tool, path[0]: schema}


def _read(value: object) -> object:
    try:
        return read_json(value) if isinstance(value, str) else value
    except ValueError:
        return None
