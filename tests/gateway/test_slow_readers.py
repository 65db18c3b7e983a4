"""Clients that read slowly or not at all: places, memory and connections come back. Virtual time, but for the last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from types import SimpleNamespace

import pytest
from starlette.types import Send

from service.engine.request import Sharing
from service.errors import NotReady, ReplicaLost, SlowReader
from service.gateway.http import guarded
from service.gateway.http.guarded import LEAST_BYTES, LIMIT_S, WriteLimit
from service.gateway.http.listener import Listener
from service.gateway.slow_readers import GRACE_S, SlowReaders
from service.ipc import data
from service.messages.wire import Answering, Chunk, Ending
from tests.admission.overload import BLOCK, request
from tests.admission.test_charges import Client, Shop
from tests.admission.virtual import now, run
from tests.gateway.doubles import STATS
from tests.gateway.helpers import eventually

BLOCKS = 8


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "time", SimpleNamespace(monotonic=now))


def stream(shop: Shop, timeout_s: float = 1e6, fails_at: int | None = None, tenant: str = "") -> Answering:
    """An answer of eight blocks, a block a second."""
    shop.count += 1
    if fails_at is not None:
        shop.replicas.fails_at[str(shop.count)] = fails_at
    asked = request(shop.count, BLOCKS, timeout_s, sharing=Sharing(tenant))
    return shop.answers.stream(asked, shop.charge())


def in_shop(script: Callable[[Shop], Awaitable[object]], places: int = 1) -> None:
    async def main() -> None:
        shop = Shop(places)
        await script(shop)
        assert shop.answers._readers.waiting_bytes == 0
        assert shop.door._slots.used == 0

    run(main())


def test_the_place_is_free_when_the_replica_has_answered() -> None:
    """Whoever reads. The reader gets everything later."""

    async def script(shop: Shop) -> None:
        async with aclosing(stream(shop)) as items:
            read = [await anext(items)]
            other = await shop.ask(Client(BLOCK), stream=True)
            assert other.ended
            assert now() == pytest.approx(BLOCKS + 1, abs=1)
            read += [item async for item in items]
        assert [item.index for item in read if isinstance(item, Chunk)] == list(range(BLOCKS))
        assert isinstance(read[-1], Ending)

    in_shop(script)


def test_who_reads_takes_the_items_itself() -> None:
    async def script(shop: Shop) -> None:
        async with aclosing(stream(shop)) as items:
            async for _ in items:
                [relay] = shop.answers._readers._relays
                assert relay._relaying is None

    in_shop(script)


@pytest.mark.parametrize("reads", [1, 3])
def test_who_reads_a_little_holds_no_place_either(reads: int) -> None:
    """A block now and then: the replica is at its end long before."""

    async def script(shop: Shop) -> None:
        async with aclosing(stream(shop)) as items:
            for _ in range(reads):
                await anext(items)
                await asyncio.sleep(4)
            await asyncio.sleep(BLOCKS)
            assert shop.door._slots.used == 0

    in_shop(script)


def test_an_error_comes_after_the_blocks_before_it() -> None:
    async def script(shop: Shop) -> None:
        items = stream(shop, fails_at=4)  # its error is a ReplicaLost
        await anext(items)
        await asyncio.sleep(10)
        read = [await anext(items) for _ in range(3)]
        with pytest.raises(ReplicaLost):
            await anext(items)
        assert [chunk.index for chunk in read if isinstance(chunk, Chunk)] == [1, 2, 3]

    in_shop(script)


def test_who_leaves_ends_the_answer() -> None:
    async def script(shop: Shop) -> None:
        items = stream(shop)
        await anext(items)
        await asyncio.sleep(2)
        assert shop.door._slots.used == 1
        await items.aclose()
        assert (shop.door._slots.used, shop.answers.in_flight, now()) == (0, 0, 3)

    in_shop(script)


def test_a_cut_reaches_who_does_not_read() -> None:
    async def script(shop: Shop) -> None:
        items = stream(shop)
        await anext(items)
        await asyncio.sleep(2)
        shop.draining.abort()
        with pytest.raises(NotReady, match="shut down"):
            [item async for item in items]

    in_shop(script)


def test_past_its_time_limit_an_answer_is_given_up() -> None:
    async def script(shop: Shop) -> None:
        items = stream(shop, timeout_s=20)
        await anext(items)
        await asyncio.sleep(1)
        for _ in range(3):
            await anext(items)
        await asyncio.sleep(20 + GRACE_S)
        with pytest.raises(SlowReader, match="not read 60 s after its timeout_s"):
            await anext(items)

    in_shop(script)


def test_the_tenant_with_the_most_loses_its_longest() -> None:
    async def script(shop: Shop) -> None:
        shop.answers._readers = SlowReaders(most_bytes=1600)
        streams = {name: stream(shop, tenant=name[0]) for name in ("a1", "a2", "a3", "b")}
        for items in streams.values():
            await anext(items)
        readers = shop.answers._readers
        sizes = []
        while shop.door._slots.used:
            await asyncio.sleep(0.5)
            sizes.append(readers.waiting_bytes)
        assert 1300 < max(sizes) <= 1600
        assert len([item async for item in streams.pop("b")]) == BLOCKS
        lost = 0
        for items in streams.values():
            try:
                assert len([item async for item in items]) == BLOCKS
            except SlowReader:
                lost += 1
        assert 0 < lost < 3

    in_shop(script, places=4)


def test_nothing_comes_after_what_was_given_up() -> None:
    """All blocks have come at once, so the task that takes them does not wait between them."""

    async def blocks() -> Answering:
        for index in range(100):
            yield Chunk(index, "", (1,) * BLOCK, STATS)

    async def main() -> None:
        readers = SlowReaders(most_bytes=2000)
        relay = readers.relay(request(1, 100), blocks())
        first = await anext(relay)
        await asyncio.sleep(1)
        assert isinstance(first, Chunk)
        with pytest.raises(SlowReader, match="read too slowly"):
            await anext(relay)
        await relay.aclose()
        assert readers.waiting_bytes == 0

    run(main())


class Pipe:
    """A connection's end: so many bytes wait. Notes its abort."""

    def __init__(self) -> None:
        self.waiting, self.aborted = 65536, False

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str) -> Pipe:
        assert name == "socket"
        return self

    def setsockopt(self, *option: object) -> None:
        pass


class TestWriteLimit:
    @pytest.mark.parametrize(("takes", "aborted"), [(0, True), (LEAST_BYTES - 1, True), (LEAST_BYTES, False)])
    def test_a_minute_takes_at_least_so_much(self, takes: int, aborted: bool) -> None:
        async def main() -> None:
            limit = WriteLimit(pipe := Pipe())  # type: ignore[arg-type]
            limit.paused()
            pipe.waiting -= takes
            await asyncio.sleep(LIMIT_S + 1)
            assert pipe.aborted is aborted
            limit.resumed()

        run(main())

    def test_who_has_taken_enough_is_not_watched(self) -> None:
        async def main() -> None:
            limit = WriteLimit(pipe := Pipe())  # type: ignore[arg-type]
            limit.paused()
            limit.resumed()
            limit.resumed()
            await asyncio.sleep(2 * LIMIT_S)
            assert not pipe.aborted

        run(main())

    def test_a_connection_that_closes(self) -> None:
        async def main() -> None:
            limit = WriteLimit(pipe := Pipe())  # type: ignore[arg-type]
            limit.closing()
            await asyncio.sleep(LIMIT_S + 1)
            assert pipe.aborted
            limit = WriteLimit(pipe := Pipe())  # type: ignore[arg-type]
            pipe.waiting = 0
            limit.closing()
            await asyncio.sleep(LIMIT_S + 1)
            assert not pipe.aborted

        run(main())


@pytest.mark.parametrize("head", [b"", b"Connection: close\r\n"])
async def test_the_listener_ends_connections_that_do_not_read(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int, head: bytes
) -> None:
    monkeypatch.setattr(guarded, "LIMIT_S", 0.05)
    ended = asyncio.Event()

    async def app(scope: object, receive: Callable[[], Awaitable[dict[str, object]]], send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(2**24), "more_body": True})
        if (await receive())["type"] == "http.disconnect":
            ended.set()

    listener = await Listener.start(app, "127.0.0.1", unused_tcp_port)  # type: ignore[arg-type]
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
