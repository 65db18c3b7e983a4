"""Bodies to send to Anthropic's routes, streams to read."""

from __future__ import annotations

import json
from typing import Any

import httpx
from pydantic_core import from_json

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
#: what differs between two runs of one request
_OF_A_RUN = {"id", "cached_tokens", "tokens_per_forward_total", "prefill", "mrp"}
_CACHE = {"input_tokens", "cache_read_input_tokens"}


def message(*contents: Any, **fields: Any) -> dict[str, Any]:
    """A small request; None takes a field out."""
    messages = [{"role": "user", "content": content} for content in contents or ("w5 w6 w7",)]
    whole = {"model": "golden", "messages": messages, "max_tokens": 16} | fields
    return {name: value for name, value in whole.items() if value is not None}


async def ask(http: httpx.AsyncClient, body: dict[str, Any], path: str = MESSAGES) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def refused(
    http: httpx.AsyncClient, body: dict[str, Any], status: int = 400, path: str = MESSAGES
) -> dict[str, Any]:
    """The error of an answer in Anthropic's shape."""
    response = await http.post(path, json=body)
    assert response.status_code == status, response.text
    answer = response.json()
    assert answer["type"] == "error"
    assert answer["request_id"] == response.headers["x-request-id"] == response.headers["request-id"]
    error: dict[str, Any] = answer["error"]
    return error


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream. Each is named as its data says."""
    *frames, rest = text.split("\n\n")
    assert rest == ""
    found = []
    for frame in frames:
        name, _, data = frame.partition("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def events(http: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream that ends as it should, `ping` left out."""
    response = await http.post(MESSAGES, json=body | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = events_of(response.text)
    assert [event["type"] for event in (found[0], *found[-2:])] == ["message_start", "message_delta", "message_stop"]
    return [event for event in found if event["type"] != "ping"]


def whole_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events of a stream make, as Anthropic's clients put it together."""
    told = dict(found[0]["message"])
    blocks: list[dict[str, Any]] = []
    for event in found:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
            given = ""
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            if delta["type"] == "input_json_delta":
                given += delta["partial_json"]
                block["input"] = from_json(given, allow_partial=True)
            else:
                name = {"text_delta": "text", "thinking_delta": "thinking"}[delta["type"]]
                block[name] += delta[name]
        elif event["type"] == "message_delta":
            more = {name: value for name, value in event.items() if name not in ("type", "delta", "usage")}
            told |= event["delta"] | more | {"usage": told["usage"] | event["usage"]}
    return told | {"content": blocks}


def essence(value: Any) -> Any:
    """The parts that are equal in two runs of one request: no ids and times, nothing of the cache."""
    if isinstance(value, list):
        return [essence(one) for one in value]
    if isinstance(value, float):
        return round(value, 3)
    if not isinstance(value, dict):
        return value
    left_out = {name for name in value if name in _OF_A_RUN or name in _CACHE or name.endswith("_ms")}
    prompt = {"prompt": sum(value[name] for name in _CACHE)} if value.keys() >= _CACHE else {}
    return {name: essence(one) for name, one in value.items() if name not in left_out} | prompt
