"""Clients of a fleet: each sends a new request as soon as it has an answer.

They use aiohttp, whose requests cost a fraction of httpx's, since the clients share the machine's cores with the
service that they measure.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Asked:
    """The requests of the clients. `tokens`: the mean; actual numbers are 0.5 to 1.5 times as many."""

    tokens: int
    stream: bool
    seed: int = 17

    def body(self, draw: random.Random | None) -> dict[str, Any]:
        """The body of one request. Without `draw` it asks for exactly `tokens` tokens."""
        tokens = self.tokens if draw is None else draw.randint(max(1, self.tokens // 2), self.tokens + self.tokens // 2)
        prompt = "go on" if draw is None else f"{draw.getrandbits(64):x} " * 20
        return {"prompt": prompt, "max_new_tokens": tokens, "stream": self.stream, "mode": "static"}


@dataclass
class Seen:
    """One answer: seconds to its first block (or whole answer) and to its end, and the engine's own time."""

    status: int
    first_s: float = 0.0
    total_s: float = 0.0
    engine_first_s: float = 0.0
    blocks: int = 0


@dataclass
class Counted:
    """The counts of a window. `decoded`: tokens counted by the replicas. `answered`: tokens of whole answers."""

    seconds: float = 0.0
    answers: int = 0
    blocks: int = 0
    decoded: float = 0.0
    answered: int = 0
    metrics_s: float = 0.0
    client_cpu_s: float = 0.0
    statuses: dict[int, int] = field(default_factory=dict)


def session(url: str) -> aiohttp.ClientSession:
    """A session with as many connections as clients."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    return aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


async def ask(http: aiohttp.ClientSession, body: dict[str, Any]) -> Seen:
    """Sends one request and reads the whole answer."""
    began = time.perf_counter()
    async with http.post("/generate", json=body) as response:
        if response.status != 200:
            await response.read()
            return Seen(response.status)
        if not body["stream"]:
            stats = (await response.json())["stats"]
            total_s = time.perf_counter() - began
            return Seen(200, total_s, total_s, (stats["total_ms"] - stats["queue_ms"]) / 1e3, 1)
        return await _streamed(response, began)


async def _streamed(response: aiohttp.ClientResponse, began: float) -> Seen:
    seen = Seen(0)  # replaced at the end of the answer
    async for line in response.content:
        if line.startswith(b"event: block"):
            seen.blocks += 1
            seen.first_s = seen.first_s or time.perf_counter() - began
        elif seen.blocks == 1 and not seen.engine_first_s and line.startswith(b"data: "):
            stats = json.loads(line.removeprefix(b"data: "))["stats"]
            seen.engine_first_s = (stats["total_ms"] - stats["queue_ms"]) / 1e3
        elif line.startswith(b"event: done"):
            seen.status = 200
    seen.total_s = time.perf_counter() - began
    return seen


class Crowd:
    """Clients in a closed loop. `window` counts the events of a time span."""

    def __init__(self, http: aiohttp.ClientSession, asked: Asked, clients: int) -> None:
        self._http = http
        self._asked = asked
        self._clients = clients
        self._draw = random.Random(asked.seed)
        self._counted = Counted()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Crowd:
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def window(self, seconds: float) -> Counted:
        """The counts of the next `seconds` seconds."""
        before, began = await tokens_decoded(self._http), time.monotonic()
        self._counted, cpu = Counted(), time.thread_time()
        await asyncio.sleep(seconds)
        counted, counted.client_cpu_s = self._counted, time.thread_time() - cpu
        counted.seconds, self._counted = time.monotonic() - began, Counted()
        after = await tokens_decoded(self._http)
        counted.metrics_s = time.monotonic() - began - counted.seconds
        # Each page of metrics counts as of the moment when it arrived.
        counted.decoded = (after - before) * counted.seconds / (counted.seconds + counted.metrics_s)
        return counted

    async def _client(self) -> None:
        while True:
            body = self._asked.body(self._draw)
            try:
                seen = await ask(self._http, body)
            except aiohttp.ClientError:
                seen = Seen(0)
            counted = self._counted
            counted.statuses[seen.status] = counted.statuses.get(seen.status, 0) + 1
            counted.answers += seen.status == 200
            counted.answered += body["max_new_tokens"] if seen.status == 200 else 0
            counted.blocks += seen.blocks
            if seen.status != 200:
                await asyncio.sleep(1.0)


async def tokens_decoded(http: aiohttp.ClientSession) -> float:
    """The tokens that all replicas have decoded so far."""
    async with http.get("/metrics") as response:
        page = await response.text()
    lines = [line for line in page.splitlines() if line.startswith("mrp_generation_tokens_total{")]
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    return sum(sample.value for family in families for sample in family.samples)
