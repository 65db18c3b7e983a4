"""Bodies that do not end, at an ingress with its own listener: shares of keys, requests that count, and the drain."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message

from service.errors import NotReady, SlowBody
from service.gateway.http import bodies
from service.gateway.http.bodies import BYTES_PER_S, Bodies
from service.gateway.http.listener import Listener
from service.gateway.ingress import Ingress
from service.messages.wire import Chunk, Ending
from service.settings.settings import Settings
from tests.gateway.doubles import STATS, Scripted
from tests.gateway.helpers import eventually, keys_file

PATHS = ["/generate", "/v1/completions", "/v1/messages", "/v1/score", "/admin/pause"]
WHOLE = json.dumps({"model": "golden", "prompt": "a", "max_tokens": 4}).encode()


@pytest.fixture
def backend() -> Scripted:
    return Scripted(Chunk(0, "x", (1,), STATS), Ending("stop", 1, 1, STATS))


@pytest.fixture
def ingress(backend: Scripted, tmp_path: Path) -> Ingress:
    """With keys `a` (4 requests a minute), `b` and an administrator's."""
    path = keys_file(tmp_path, a={"requests_per_minute": 4}, b={})
    settings = Settings(api_keys_file=path, admin_keys=("root",), served_model_name="golden")
    return Ingress("i0", settings, backend)


@pytest.fixture
async def port(ingress: Ingress, unused_tcp_port: int) -> AsyncIterator[int]:
    listener = Listener(ingress.app(answers_request_id=True), "127.0.0.1", unused_tcp_port)
    yield unused_tcp_port
    await listener.close(1.0)


class Sender:
    """A client that has sent the head of a request and the first byte of its body."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def begin(cls, port: int, key: str, path: str = "/v1/completions", length: int = len(WHOLE)) -> Sender:
        sender = cls(*await asyncio.open_connection("127.0.0.1", port))
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n"
        sender.send(head.encode() + WHOLE[:1])
        return sender

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> tuple[int, dict[str, Any]]:
        async with asyncio.timeout(120):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            content = await self._reader.readexactly(length)
        self._writer.close()
        return int(head.split()[1]), json.loads(content)


class TestKeys:
    async def test_a_key_loses_its_slowest_body_beyond_its_share(self, port, ingress, monkeypatch):
        monkeypatch.setattr(bodies, "MOST_OF_A_KEY", 3)
        senders = []
        for key in ("a", "b", "b", "b"):
            senders.append(await Sender.begin(port, key))
            await eventually(lambda: len(ingress.bodies) == len(senders))
        last = await Sender.begin(port, "b")
        status, body = await senders[1].answer()
        assert (status, body["error"]["code"]) == (408, "slow_body")
        for sender in (senders[0], *senders[2:], last):
            sender.send(WHOLE[1:])
            assert (await sender.answer())[0] == 200
        assert len(ingress.bodies) == ingress.bodies.size == 0

    async def test_a_request_counts_when_its_head_has_come(self, port, ingress):
        senders = [await Sender.begin(port, "a") for _ in range(4)]
        await eventually(lambda: len(ingress.bodies) == 4)
        status, body = await (await Sender.begin(port, "a")).answer()
        assert (status, body["error"]["code"]) == (429, "rate_limited")
        for sender in senders:
            sender.send(WHOLE[1:])
            assert (await sender.answer())[0] == 200

    async def test_a_request_that_the_service_refuses_does_not_count(self, port, backend):
        backend.down = NotReady("loading", retry_after=1.0)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"X-Api-Key": "a"}) as http:
            for _ in range(8):
                assert (await http.post("/v1/completions", content=WHOLE)).status_code == 503


@pytest.mark.parametrize("path", PATHS)
async def test_without_a_key_no_body_is_read(path, ingress):
    """The routes of administrators, too."""
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body was read")

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "root_path": ""}
    await ingress.app(answers_request_id=True)(scope, receive, send)
    assert sent[0]["status"] == 401


class TestBytes:
    """Of all bodies together, with a clock that the test sets."""

    async def test_the_tenant_with_the_most_bytes_loses_its_slowest_body(self, clock):
        all_bodies = Bodies(100, clock)
        with ExitStack() as stack:
            feeds = {name: Feed() for name in ("a1", "a2", "b1")}
            bodies = {}
            for name, feed in feeds.items():
                bodies[name] = stack.enter_context(all_bodies.coming(name[0], feed.receive))
                clock.now += 1
            for name, size in (("a1", 30), ("a2", 20), ("b1", 45)):
                feeds[name].put(size)
                await bodies[name]()
            assert all_bodies.size == 95
            waiting = asyncio.ensure_future(bodies["a1"]())
            await asyncio.sleep(0)
            feeds["b1"].put(10)
            with pytest.raises(SlowBody):
                await bodies["b1"]()
            assert all_bodies.size == 50
            feeds["a2"].put(60)
            await bodies["a2"]()
            with pytest.raises(SlowBody, match="100 bytes"):
                await waiting
            with pytest.raises(SlowBody):
                await bodies["a1"]()
            feeds["a2"].put(1, more=False)
            assert await bodies["a2"]()
            assert (len(all_bodies), all_bodies.size) == (0, 0)

    async def test_bytes_earn_time(self, clock, monkeypatch):
        monkeypatch.setattr(bodies, "MOST_OF_A_KEY", 2)
        all_bodies = Bodies(clock=clock)
        with ExitStack() as stack:
            fast, slow = Feed(), Feed()
            first = stack.enter_context(all_bodies.coming("a", fast.receive))
            fast.put(2 * BYTES_PER_S)
            await first()
            clock.now += 1
            second = stack.enter_context(all_bodies.coming("a", slow.receive))
            clock.now += 0.5
            stack.enter_context(all_bodies.coming("a", Feed().receive))
            with pytest.raises(SlowBody):
                await second()
            fast.put(1)
            await first()


class Feed:
    def __init__(self) -> None:
        self._parts: asyncio.Queue[Message] = asyncio.Queue()

    def put(self, size: int, *, more: bool = True) -> None:
        self._parts.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": more})

    async def receive(self) -> Message:
        return await self._parts.get()


@pytest.mark.parametrize("path", PATHS)
async def test_a_drain_ends_unfinished_bodies(port, ingress, path, caplog):
    caplog.set_level(logging.INFO, "service.requests")
    sender = await Sender.begin(port, "root" if "admin" in path else "b", path)
    await eventually(lambda: len(ingress.bodies) == 1)
    await asyncio.sleep(0)
    assert ingress.draining.in_flight == 0
    assert ingress.draining.begin() == 0
    status, body = await sender.answer()
    assert (status, body["error"]["code"]) == (503, "not_ready")
    assert "draining" in body["error"]["message"]
    await eventually(lambda: [getattr(record, "status", None) for record in caplog.records] == [503])
    assert ingress.draining.in_flight == 0
