"""Bodies to send, streams to read, and replicas that say what a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx

from service.api.wire import Answer, Chunk, Ending, Failure, ModelCard, Snapshot, Status, Work
from service.engine.request import Stats

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = [443, 286, 438, 473, 399, 238, 231, 260]

CARD = ModelCard(
    name="golden",
    block_size=4,
    vocab_size=64,
    max_model_len=256,
    mrp=None,
    modes=("static", "dynamic"),
    default_mode="static",
    defaults={"static": {"tokens_per_step": 1}, "dynamic": {"threshold": 0.9}},
    chat=True,
    places=64,
)


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


async def refused(http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int = 422) -> dict[str, Any]:
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


class Scripted:
    """A backend whose every request gets the same items, a bare exception raised; after them it hangs, if told to."""

    def __init__(self, *items: Chunk | Ending | Failure | Exception, hangs: bool = False) -> None:
        self.items, self.hangs = items, hangs
        self.works: list[Work] = []
        self.live = 0
        self.all_hang = asyncio.Event()
        self.waiting_for = 1

    async def card(self) -> ModelCard:
        return CARD

    async def stream(self, work: Work) -> AsyncGenerator[Chunk | Ending | Failure]:
        self.works.append(work)
        self.live += 1
        try:
            for item in self.items:
                if isinstance(item, Exception):
                    raise item
                yield item
            if self.hangs:
                if self.live == self.waiting_for:
                    self.all_hang.set()
                await asyncio.Event().wait()
        finally:
            self.live -= 1

    async def complete(self, work: Work) -> Answer | Failure:
        text = ""
        async for item in self.stream(work):
            if isinstance(item, Failure):
                return item
            if isinstance(item, Ending):
                return Answer(text, (1,), item)
            text += item.text
        raise AssertionError("the script has no ending")

    async def statuses(self) -> list[Status]:
        return [Status("r0", None, CARD)]

    async def snapshots(self, own: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        return [own], []
