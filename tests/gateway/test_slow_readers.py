"""Clients that read slowly or not at all: slots, memory and connections come back. Virtual time, but for the last."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from starlette.types import Send

from service.admission.controller import AdmissionController
from service.engine.request import Sharing
from service.errors import NotReady, ReplicaLost, SlowReader
from service.gateway.draining import Draining
from service.gateway.http import output
from service.gateway.http.bodies import Bodies
from service.gateway.http.listener import Listener
from service.gateway.pipeline import RequestPipeline
from service.gateway.slow_readers import GRACE_S, Relay, SlowReaders
from service.ipc import data
from service.messages.wire import AnswerStream, Chunk, Ending, ReplicaRequest
from service.routing.failover import FailoverPolicy
from service.settings.settings import Settings
from tests.admission.overload import BLOCK, request
from tests.admission.virtual import now, run
from tests.gateway.doubles import CARD, STATS, uncharged
from tests.gateway.helpers import eventually

BLOCKS = 8


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "time", SimpleNamespace(monotonic=now))


class Service:
    """A pipeline over replicas that make a block a second. `pipeline.stream` is the answer that a client reads."""

    def __init__(self, slots: int, readers: SlowReaders | None = None) -> None:
        self.admission = AdmissionController(
            Settings(max_queue_s=1e6, max_waiting=10**6), asyncio.get_running_loop().time
        )
        self.admission.serves(replace(CARD, slots=slots, max_model_len=10**9))
        self.draining, self.count, self.fails_at = Draining(Bodies()), 0, sys.maxsize
        backend = SimpleNamespace(stream=self._blocks, note_error=lambda error: None)
        self.pipeline = RequestPipeline(backend, self.admission, self.draining, FailoverPolicy(0))  # type: ignore[arg-type]
        if readers is not None:
            self.pipeline.readers = readers

    async def _blocks(self, replica_request: ReplicaRequest) -> AnswerStream:
        for index in range(BLOCKS):
            await asyncio.sleep(1)
            if index == self.fails_at:
                raise ReplicaLost("gone")
            yield Chunk(index, "", (1,) * BLOCK, STATS)
        yield Ending("length", 1, BLOCKS * BLOCK, STATS)

    def answer(self, timeout_s: float = 1e6, tenant: str = "") -> AnswerStream:
        self.count += 1
        return self.pipeline.stream(request(self.count, BLOCKS, timeout_s, sharing=Sharing(tenant)), uncharged())

    @property
    def used_slots(self) -> int:
        return self.admission.slots.used


def simulate(
    script: Callable[[Service], Awaitable[object]], slots: int = 1, readers: SlowReaders | None = None
) -> None:
    """Runs a script in virtual time. Afterwards all memory and slots are free."""

    async def main() -> None:
        service = Service(slots, readers)
        await script(service)
        assert service.pipeline.readers.waiting_bytes == 0
        assert service.used_slots == 0

    run(main())


def test_the_slot_is_free_when_the_replica_has_answered():
    """However slowly the client reads. It gets everything later."""

    async def script(service: Service) -> None:
        async with aclosing(service.answer()) as items:
            received = [await anext(items)]
            async with aclosing(service.answer()) as other:
                await anext(other)
            assert now() == pytest.approx(BLOCKS + 1, abs=1)
            received += [item async for item in items]
        assert [item.index for item in received if isinstance(item, Chunk)] == list(range(BLOCKS))
        assert isinstance(received[-1], Ending)

    simulate(script)


def test_an_error_comes_after_the_blocks_before_it():
    async def script(service: Service) -> None:
        service.fails_at = 4
        items = service.answer()
        await anext(items)
        await asyncio.sleep(10)
        received = [await anext(items) for _ in range(3)]
        with pytest.raises(ReplicaLost):
            await anext(items)
        assert [chunk.index for chunk in received if isinstance(chunk, Chunk)] == [1, 2, 3]

    simulate(script)


def test_a_client_that_leaves_ends_the_answer():
    async def script(service: Service) -> None:
        items = service.answer()
        await anext(items)
        await asyncio.sleep(2)
        assert service.used_slots == 1
        await items.aclose()
        assert (service.used_slots, service.pipeline.in_flight, now()) == (0, 0, 3)

    simulate(script)


def test_a_drain_cuts_an_answer_that_is_not_read():
    async def script(service: Service) -> None:
        items = service.answer()
        await anext(items)
        await asyncio.sleep(2)
        service.draining.abort()
        with pytest.raises(NotReady, match="shut down"):
            _ = [item async for item in items]

    simulate(script)


def test_an_answer_that_is_not_read_ends_after_its_time_limit():
    async def script(service: Service) -> None:
        items = service.answer(timeout_s=20)
        await anext(items)
        await asyncio.sleep(1)
        for _ in range(3):
            await anext(items)
        await asyncio.sleep(20 + GRACE_S)
        with pytest.raises(SlowReader, match="not read 60 s after its timeout_s"):
            await anext(items)

    simulate(script)


def test_the_tenant_with_the_most_bytes_loses_its_longest_answer():
    readers = SlowReaders(most_bytes=1600)

    async def script(service: Service) -> None:
        answers = {name: service.answer(tenant=name[0]) for name in ("a1", "a2", "a3", "b")}
        for items in answers.values():
            await anext(items)
        sizes = []
        while service.used_slots:
            await asyncio.sleep(0.5)
            sizes.append(readers.waiting_bytes)
        assert 1300 < max(sizes) <= 1600
        assert len([item async for item in answers.pop("b")]) == BLOCKS
        lost = 0
        for items in answers.values():
            try:
                assert len([item async for item in items]) == BLOCKS
            except SlowReader:
                lost += 1
        assert 0 < lost < 3

    simulate(script, slots=4, readers=readers)


def test_nothing_comes_after_an_answer_was_given_up():
    """All blocks have come at once, so the task that takes them does not wait between them."""

    async def blocks() -> AnswerStream:
        for index in range(100):
            yield Chunk(index, "", (1,) * BLOCK, STATS)

    async def main() -> None:
        readers = SlowReaders(most_bytes=2000)
        relay = Relay(readers, request(1, 100), blocks()).items()
        first = await anext(relay)
        await asyncio.sleep(1)
        assert isinstance(first, Chunk)
        with pytest.raises(SlowReader, match="read too slowly"):
            await anext(relay)
        await relay.aclose()
        assert readers.waiting_bytes == 0

    run(main())


@pytest.mark.parametrize("head", [b"", b"Connection: close\r\n"])
async def test_the_listener_ends_connections_that_do_not_read(monkeypatch, unused_tcp_port, head):
    monkeypatch.setattr(output, "LIMIT_S", 0.05)
    monkeypatch.setattr(output, "_POLL_S", 0.05)
    ended = asyncio.Event()

    async def app(scope: object, receive: Callable[[], Awaitable[dict[str, object]]], send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(2**24), "more_body": True})
        if (await receive())["type"] == "http.disconnect":
            ended.set()

    listener = Listener(app, "127.0.0.1", unused_tcp_port)  # type: ignore[arg-type]
    reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port, limit=1)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n%b\r\n" % head)
    await eventually(ended.is_set)
    with pytest.raises(ConnectionResetError):
        await drained(reader)
    writer.close()
    await listener.close(1.0)


async def drained(reader: asyncio.StreamReader) -> None:
    while await reader.read(2**16):
        pass
