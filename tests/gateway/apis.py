"""The gateway's APIs as tests use them: small bodies, and how an answer, an error and a stream are read."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from pydantic_core import from_json

from service.engine.request import Stats
from service.messages.wire import Chunk, Ending

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES, COUNT, SCORE = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/score"
PROMPT = [443, 286, 438, 473, 399, 238, 231, 260]
#: fields that differ between two runs of one request: ids, times, and what the prefix cache had
_OF_A_RUN = {"id", "item_id", "call_id", "created", "created_at", "completed_at", "cached_tokens"}
_OF_A_RUN |= {"tokens_per_forward_total", "prefill", "mrp"}
_ANTHROPICS_PROMPT = {"input_tokens", "cache_read_input_tokens"}


def user(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content} for content in contents or ("w5 w6 w7",)]


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "golden", "prompt": PROMPT, "max_tokens": 16} | fields


def chat(*contents: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "golden", "messages": user(*contents), "max_tokens": 16} | fields


def message(*contents: Any, **fields: Any) -> dict[str, Any]:
    """A body of Anthropic's; None takes a field out."""
    return {name: value for name, value in chat(*contents, **fields).items() if value is not None}


def response(text: Any = "w5 w6 w7", /, **fields: Any) -> dict[str, Any]:
    """A body of OpenAI's responses; None takes a field out."""
    body = {"model": "golden", "input": text, "max_output_tokens": 20, "mode": "static", "seed": 1} | fields
    return {name: value for name, value in body.items() if value is not None}


@dataclass(frozen=True)
class Api:
    """A route that answers prompts. `limit`: its field for the most tokens."""

    path: str
    limit: str
    prompt: Callable[[str], dict[str, Any]]
    #: the text of a whole answer, and of an event of a stream
    text: Callable[[dict[str, Any]], str]
    delta: Callable[[dict[str, Any]], str]

    def body(self, text: str = "w5 w6 w7", /, **fields: Any) -> dict[str, Any]:
        return {"model": "golden", self.limit: 16, **self.prompt(text), **fields}


def _choices_text(event: dict[str, Any]) -> str:
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in event["choices"])


APIS = [
    Api(GENERATE, "max_new_tokens", lambda text: {"prompt": text}, lambda a: a["text"], lambda e: e.get("text", "")),
    Api(COMPLETIONS, "max_tokens", lambda text: {"prompt": text}, lambda a: a["choices"][0]["text"], _choices_text),
    Api(
        CHAT,
        "max_tokens",
        lambda text: {"messages": user(text)},
        lambda answer: answer["choices"][0]["message"]["content"],
        _choices_text,
    ),
    Api(
        RESPONSES,
        "max_output_tokens",
        lambda text: {"input": text},
        lambda answer: "".join(part["text"] for item in answer["output"] for part in item["content"]),
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
    Api(
        MESSAGES,
        "max_tokens",
        lambda text: {"messages": user(text)},
        lambda answer: "".join(block["text"] for block in answer["content"]),
        lambda event: event["delta"]["text"] if event["type"] == "content_block_delta" else "",
    ),
]
#: for every API
each_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
#: for every API of another company, whose clients send `model`
each_foreign_api = pytest.mark.parametrize("api", APIS[1:], ids=lambda api: api.path)


async def ask(http: httpx.AsyncClient, path: str, body: dict[str, Any] | str) -> dict[str, Any]:
    answer = await http.post(path, content=body if isinstance(body, str) else json.dumps(body))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def refused(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int | None = None
) -> dict[str, Any]:
    answer = await http.post(path, json=body)
    assert answer.status_code == (status or (422 if path == GENERATE else 400)), answer.text
    content = answer.json()
    error = dict(content["error"])
    request_id = content["request_id"] if path in {MESSAGES, COUNT} else error["request_id"]
    assert request_id == answer.headers["x-request-id"]
    assert path not in {MESSAGES, COUNT} or (content["type"], answer.headers["request-id"]) == ("error", request_id)
    return error


def read_events(path: str, content: str) -> list[dict[str, Any]]:
    """The data of the events of a stream. OpenAI's older streams have no names, and end with `[DONE]`."""
    *frames, rest = content.split("\n\n")
    assert rest == ""
    if path in {COMPLETIONS, CHAT}:
        if "error" not in frames[-1]:
            assert frames.pop() == "data: [DONE]"
        return [json.loads(frame.removeprefix("data: ")) for frame in frames]
    events = []
    for number, frame in enumerate(frames):
        name, _, data = frame.partition("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert path == GENERATE or name == f"event: {events[-1]['type']}"
        assert path != RESPONSES or events[-1]["sequence_number"] == number
    return [event for event in events if event.get("type") != "ping"]


async def stream_events(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await http.post(path, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return read_events(path, answer.text)


def choices(events: Sequence[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [choice for event in events for choice in event["choices"] if choice["index"] == index]


def by_choice(events: Sequence[dict[str, Any]]) -> dict[int, list[Any]]:
    """The events of each choice, which come in any order. Events without a choice are under -1."""
    groups: dict[int, list[Any]] = {}
    for event in events:
        index = event["choices"][0]["index"] if event.get("choices") else -1
        groups.setdefault(index, []).append(event)
    return groups


def chat_message(events: Sequence[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The message that a chat's events make, as OpenAI's clients put it together; empty fields are left out."""
    message, calls = dict[str, Any](), dict[int, dict[str, Any]]()
    for delta in (choice["delta"] for choice in choices(events, index)):
        for name, value in delta.items():
            if name in {"role", "content", "reasoning_content"}:
                message[name] = message.get(name, "") + (value or "")
        for part in delta.get("tool_calls", ()):
            call = calls.setdefault(part["index"], {"type": "function", "function": {"arguments": ""}})
            arguments = call["function"]["arguments"] + part["function"]["arguments"]
            call |= {name: part[name] for name in ("id",) if name in part}
            call["function"] |= part["function"] | {"arguments": arguments}
    message |= {"tool_calls": list(calls.values())} if calls else {}
    return {name: value for name, value in message.items() if value}


def whole_message(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events of Anthropic's stream make, as its clients put it together."""
    assert [event["type"] for event in (events[0], *events[-2:])] == ["message_start", "message_delta", "message_stop"]
    message, blocks, arguments = dict(events[0]["message"]), list[dict[str, Any]](), ""
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
            arguments = ""
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            if delta["type"] == "input_json_delta":
                arguments += delta["partial_json"]
                block["input"] = from_json(arguments, allow_partial=True)
            else:
                name = {"text_delta": "text", "thinking_delta": "thinking"}[delta["type"]]
                block[name] += delta[name]
        elif event["type"] == "message_delta":
            more = {name: value for name, value in event.items() if name not in ("type", "delta", "usage")}
            message |= event["delta"] | more | {"usage": message["usage"] | event["usage"]}
    return message | {"content": blocks}


def essence(value: Any) -> Any:
    """The parts that are equal in two runs of one request: no ids and times, nothing of the cache; rounded floats."""
    if isinstance(value, list):
        return [essence(item) for item in value]
    if isinstance(value, float):
        return round(value, 3)
    if not isinstance(value, dict):
        return value
    prompt = {"prompt": sum(value[name] for name in _ANTHROPICS_PROMPT)} if value.keys() >= _ANTHROPICS_PROMPT else {}
    left_out = _OF_A_RUN | (_ANTHROPICS_PROMPT if prompt else set())
    names = [name for name in value if name not in left_out and not name.endswith("_ms")]
    return {name: essence(value[name]) for name in names} | prompt


def without_cached(usage: dict[str, Any]) -> dict[str, Any]:
    """Token counts less what the prefix cache had, which differs between two runs of one request."""
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


def chunk(index: int = 0, text: str = "a") -> Chunk:
    return Chunk(index, text, (1,), Stats(), prompt_tokens=3)


def ending(reason: Any = "length") -> Ending:
    return Ending(reason, 3, 1, Stats(cached_tokens=1))
