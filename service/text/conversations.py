"""Changes of a conversation's order and shape, each of which some chat templates need. Knows no template and no API.

Each leaves a conversation alone that does not need it. `arrangement.py` is the caller.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from service.text.tools.formats import TOOL_FORMATS

Turn = Mapping[str, Any]
Turns = Sequence[Turn]

#: the text between two texts that become one message
_BETWEEN: Final = "\n\n"
#: the form of calls in texts
_WRITTEN: Final = TOOL_FORMATS["qwen3"]


def with_short_ids(messages: Turns) -> list[Turn]:
    """Ids of nine letters, as Mistral's templates demand them."""
    names = dict[str, str]()

    def short(call_id: str) -> str:
        return names.setdefault(call_id, f"call{len(names):05}")

    made = list[Turn]()
    for message in messages:
        calls = [{**call, "id": short(call["id"])} for call in calls_of(message)]
        changed: dict[str, Any] = {"tool_calls": calls} if calls else {}
        if message.get("tool_call_id"):
            changed = {"tool_call_id": short(message["tool_call_id"])}
        made.append({**message, **changed})
    return made


def with_texts_as_arguments(messages: Turns) -> list[Turn]:
    """The arguments of calls as JSON text, as DeepSeek's templates put them together."""
    return [_with_calls(message, [_with_text(call) for call in calls_of(message)]) for message in messages]


def with_single_calls(messages: Turns) -> list[Turn]:
    """One call in a message, and its result behind it."""
    made, by_call = list[list[Turn]](), dict[str, list[Turn]]()
    for message in messages:
        if message["role"] == "tool" and message["tool_call_id"] in by_call:
            by_call[message["tool_call_id"]].append(message)
            continue
        further = {**_without(message, "reasoning_content"), "content": ""}
        calls = [_with_calls(further if index else message, [call]) for index, call in enumerate(calls_of(message))]
        groups = [[call] for call in calls or [message]]
        by_call |= {call["tool_calls"][0]["id"]: group for call, group in zip(calls, groups, strict=False)}
        made += groups
    return [message for group in made for message in group]


def with_written_calls(messages: Turns) -> list[Turn]:
    """Calls as text of the assistant, their results as text of the user."""
    made = list[Turn]()
    for is_result, group in groupby(messages, lambda message: bool(message["role"] == "tool")):
        if is_result:
            texts = (f"<tool_response>\n{message['content']}\n</tool_response>" for message in group)
            made.append({"role": "user", "content": "\n".join(texts)})
        else:
            made += map(_with_written, group)
    return made


def _with_written(message: Turn) -> Turn:
    if not (calls := calls_of(message)):
        return message
    written = _WRITTEN.written(*((call["function"]["name"], _json(call)) for call in calls))
    text = "\n".join(filter(None, (message["content"], written)))
    return {**_without(message, "tool_calls"), "content": text}


def with_systems_first(messages: Turns) -> list[Turn]:
    """One system message at the beginning, with all texts of the others."""
    systems = [message for message in messages if message["role"] == "system"]
    turns = [message for message in messages if message["role"] != "system"]
    return [_joined(systems), *turns] if systems else turns


def with_user(messages: Turns) -> list[Turn]:
    """A user's empty message before the first turn, if the user says nothing."""
    if any(message["role"] == "user" for message in messages):
        return list(messages)
    first = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    return [*messages[:first], _EMPTY, *messages[first:]]


def with_systems_in_user(messages: Turns) -> list[Turn]:
    """No system message: its text begins the first message of the user."""
    first, *turns = with_systems_first(messages) or [_EMPTY]
    if first["role"] != "system":
        return [first, *turns]
    if turns and turns[0]["role"] == "user":
        return [_joined((first, turns[0]), role="user"), *turns[1:]]
    return [{**first, "role": "user"}, *turns]


def with_turns(messages: Turns) -> list[Turn]:
    """User and assistant in turn, the user first: neighbours of one role are one message, empty answers are left out.

    A call of a tool stays a message of its own.
    """
    groups = list[list[Turn]]()
    for message in messages:
        role, before = message["role"], groups[-1][-1] if groups else {"role": "system"}
        if role == "assistant" and not (message["content"] or calls_of(message)):
            continue
        if groups and role == before["role"] != "tool" and not calls_of(before):
            groups[-1].append(message)
            continue
        if role == "assistant" and before["role"] == "system":
            groups.append([_EMPTY])
        groups.append([message])
    return [{**group[-1], **_joined(group)} for group in groups] or [_EMPTY]


def with_user_last(messages: Turns) -> list[Turn]:
    """A user's empty message behind an answer that is the last."""
    ends = messages[-1]["role"] == "assistant" and not calls_of(messages[-1])
    return [*messages, _EMPTY] if ends else list(messages)


def with_parts(messages: Turns) -> list[Turn]:
    """Contents as lists of parts."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}] if message["content"] else []}
        for message in messages
    ]


_EMPTY: Final[Turn] = {"role": "user", "content": ""}


def calls_of(message: Turn) -> Sequence[Mapping[str, Any]]:
    """The calls of tools in a message."""
    return message.get("tool_calls") or ()


def _with_calls(message: Turn, calls: Sequence[Mapping[str, Any]]) -> Turn:
    return {**message, "tool_calls": list(calls)} if calls else message


def _with_text(call: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**call, "function": {**call["function"], "arguments": _json(call)}}


def _json(call: Mapping[str, Any]) -> str:
    arguments = call["function"]["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _without(message: Turn, name: str) -> Turn:
    return {field: value for field, value in message.items() if field != name}


def _joined(messages: Turns, role: str | None = None) -> Turn:
    """One message with the texts of all. `role`: its role; default: the first one's."""
    texts = filter(None, (message["content"] for message in messages))
    return {"role": role or messages[0]["role"], "content": _BETWEEN.join(texts)}
