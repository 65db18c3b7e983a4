"""Calls of tools that this service does not know, with their results: both are shown, or both are left out.

A call whose result the client sends is a call of a function, whatever its type: clients run shells, patches and MCP
tools themselves. Other calls ran elsewhere, such as a search of the web. They are left out with their results.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

_Item = Mapping[str, Any]
#: fields of a call that are none of its arguments
_NO_ARGUMENTS: Final = frozenset(
    {"async", "cache_control", "call_id", "caller", "execution", "fingerprint", "id", "name", "namespace"}
    | {"pending_safety_checks", "server_label", "server_name", "status", "type"}
)
#: types of items of functions and of custom tools, whose calls are shown without results, too
_CALLS: Final = frozenset({"custom_tool_call", "function_call"})
_RESULTS: Final = frozenset(f"{call}_output" for call in _CALLS)


def with_paired_items(items: list[Any], other_types: frozenset[str]) -> list[Any]:
    """Items of Responses; calls and results of all kinds become calls and results of functions.

    `other_types`: the types that are neither.

    What is left out stays as it is: the route skips the types that it does not know.
    """
    results = {_call_id(item) for item in items if _kind(item).endswith("_output")}
    calls = {_call_id(item) for item in items if not _kind(item).endswith("_output") and _kind(item) not in other_types}
    paired = (results & calls) - {None}
    made = list[Any]()
    for item in items:
        kind = _kind(item)
        if kind in other_types or not (kind in _CALLS | _RESULTS or _call_id(item) in paired):
            made.append(item)
        elif kind.endswith("_output"):
            output = item.get("output", item.get("result"))
            if kind not in _RESULTS:
                output = json.dumps(item["tools"], ensure_ascii=False) if "tools" in item else _text(output)
            made.append({"type": "function_call_output", "call_id": _call_id(item), "output": output})
        else:
            made.append({"type": "function_call", "call_id": _call_id(item), **_called(item, "_call")})
    return made


def with_paired_blocks(messages: list[Any]) -> list[Any]:
    """Anthropic's messages; calls whose results a user's message has are blocks `tool_use` and `tool_result`."""
    blocks = [(_text_at(message, "role"), block) for message in messages for block in _blocks(message)]
    calls = {_text_at(block, "id") for role, block in blocks if role == "assistant" and _is(block, "tool_use")}
    results = {_text_at(block, "tool_use_id") for role, block in blocks if role == "user" and _is(block, "tool_result")}
    paired = (calls & results) - {None}

    def changed(role: str | None, block: Any) -> Any:
        if role == "assistant" and _is(block, "_tool_use") and _text_at(block, "id") in paired:
            called = _called(block, "_tool_use")
            return {"type": "tool_use", "id": block["id"], "name": called["name"], "input": called["arguments"]}
        if role == "user" and _is(block, "_tool_result") and _text_at(block, "tool_use_id") in paired:
            return {**block, "type": "tool_result", "content": _text(block.get("content"))}
        return block

    return [
        {**message, "content": [changed(_text_at(message, "role"), block) for block in message["content"]]}
        if _blocks(message)
        else message
        for message in messages
    ]


def _called(call: _Item, suffix: str) -> dict[str, Any]:
    """The name and the arguments of a call. Without arguments, its own fields are these."""
    name, kind = call.get("name"), _kind(call)
    arguments = call.get("arguments", call.get("input") if suffix == "_tool_use" else None)
    if arguments is None:
        arguments = {field: value for field, value in call.items() if field not in _NO_ARGUMENTS and value is not None}
    return {"name": name if isinstance(name, str) else kind.removesuffix(suffix), "arguments": arguments}


def _text(value: Any) -> Any:
    """A result as a content: a text, or parts. Any other value is written as JSON."""
    parts = [value] if _kind(value) else value
    if isinstance(parts, str) or (isinstance(parts, list) and all(map(_kind, parts))):
        return parts
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _call_id(item: Any) -> str | None:
    """The id of a call, which its result has, too."""
    return _text_at(item, "call_id") or _text_at(item, "id")


def _kind(item: Any) -> str:
    return _text_at(item, "type") or ""


def _is(block: Any, kind: str) -> bool:
    return _kind(block).endswith(kind)


def _text_at(item: Any, name: str) -> str | None:
    value = item.get(name) if isinstance(item, Mapping) else None
    return value if isinstance(value, str) else None


def _blocks(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else []
