"""Bodies to send to OpenAI's routes, streams to read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx

from service.engine.request import Stats
from service.messages.wire import Chunk, Ending

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = [443, 286, 438, 473, 399, 238, 231, 260]


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "golden", "prompt": PROMPT, "max_tokens": 16} | fields


def chat(*contents: Any, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content} for content in contents or ("w5 w6 w7",)]
    return {"model": "golden", "messages": messages, "max_tokens": 16} | fields


async def ask(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def refused(http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["request_id"] == response.headers["x-request-id"]
    return error


async def frames(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The frames of a stream that ends as it should."""
    response = await http.post(path, json=body | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def choices(events: Sequence[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    """What frames say of one choice."""
    return [choice for event in events for choice in event["choices"] if choice["index"] == index]


def without_cached(usage: dict[str, Any]) -> dict[str, Any]:
    """Token counts less what the prefix cache had, which differs between two runs of one request."""
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


def chunk(index: int = 0, text: str = "a") -> Chunk:
    return Chunk(index, text, (1,), Stats())


def ending(reason: Any = "length") -> Ending:
    return Ending(reason, 3, 1, Stats(cached_tokens=1))
