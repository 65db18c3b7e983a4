"""Answers that are not read: bounded in the kernel, in this process and for all connections; read ones come whole."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from starlette.types import Receive, Scope, Send

from service.gateway.http import output
from service.gateway.http.listener import Listener
from service.gateway.http.output import LEAST_BYTES, LIMIT_S, Output, Outputs
from tests.admission.virtual import run
from tests.gateway.helpers import eventually

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSING = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Large:
    """Answers with `size` bytes."""

    size, count = 2**21, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.count += 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % self.size)]})
        await send({"type": "http.response.body", "body": bytes(self.size)})


@pytest.fixture
def app() -> Large:
    return Large()


@pytest.fixture
async def listener(app: Large, unused_tcp_port: int) -> AsyncIterator[Listener]:
    made = Listener(app, "127.0.0.1", unused_tcp_port)
    yield made
    await made.close(1.0)


async def ask(port: int, content: bytes = GET) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that hardly reads, and whose system keeps little for it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1)
    writer.write(content)
    return reader, writer


def waiting(listener: Listener) -> list[Output]:
    return [connection._output for connection in listener._server.server_state.connections]  # type: ignore[union-attr]


@pytest.mark.parametrize("content", [GET, GET * 8, CLOSING], ids=["one", "pipelined", "closing"])
async def test_an_answer_that_is_not_read_is_counted_and_holds_back_the_next(listener, app, unused_tcp_port, content):
    _, writer = await ask(unused_tcp_port, content)
    await eventually(lambda: app.count > 0 and bool(waiting(listener)))
    [answer] = waiting(listener)
    assert app.size - 2**17 < answer.size < app.size + 2**10
    assert answer.size - answer.get_write_buffer_size() < 2**18
    assert app.count == 1
    writer.close()


async def test_all_unread_answers_are_bounded_and_those_that_are_read_come_whole(
    listener, app, unused_tcp_port, monkeypatch
):
    monkeypatch.setattr(output, "MOST_BYTES", 3 * app.size)
    monkeypatch.setattr(output, "_POLL_S", 0.02)
    clients = [await ask(unused_tcp_port) for _ in range(8)]
    await eventually(lambda: app.count == 8)
    await eventually(lambda: sum(answer.size for answer in waiting(listener)) <= output.MOST_BYTES)
    assert len(waiting(listener)) >= 2
    reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
    writer.write(CLOSING)
    assert len((await reader.read()).partition(b"\r\n\r\n")[2]) == app.size
    for _, client in (*clients, (reader, writer)):
        client.close()


@pytest.mark.parametrize("size", [100, 40_000, 2**21])
async def test_a_connection_closes_when_its_answer_was_read(listener, app, unused_tcp_port, size):
    """Whatever else the client has sent. A reset would take back what is not read."""
    app.size = size
    reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
    writer.write(CLOSING + GET * 2000)
    await eventually(lambda: app.count > 0)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert len(body) == size
    writer.close()
    await eventually(lambda: not waiting(listener))
    assert app.count == 1


class Waiting(Output):
    """A connection whose client takes bytes when the test says so."""

    def __init__(self, outputs: Outputs, size: int = 65536) -> None:
        self.waiting, self.received, self.ended = size, 0, False
        self.watched = self._closing = False
        outputs.watch(self)

    def take(self, size: int) -> None:
        self.received += size
        self.waiting -= size

    @property
    def size(self) -> int:
        return 0 if self.ended else self.waiting

    def reset(self) -> None:
        self.ended = True

    def _info(self) -> tuple[int, int]:
        return 1, self.received


@pytest.mark.parametrize(
    ("size", "takes", "ended"),
    [
        (65536, 0, True),
        (65536, LEAST_BYTES - 1, True),
        (65536, LEAST_BYTES, False),
        (100, 0, True),
        (100, 99, True),
        (100, 100, False),
    ],
)
def test_a_minute_must_take_some_bytes_or_all(size, takes, ended):
    async def main() -> None:
        client = Waiting(Outputs(), size)
        await asyncio.sleep(LIMIT_S / 2)
        client.take(takes)
        await asyncio.sleep(LIMIT_S / 2 + 2)
        assert client.ended is ended

    run(main())


def test_a_small_stream_whose_last_bytes_are_always_on_their_way_goes_on():
    async def main() -> None:
        client = Waiting(Outputs(), 100)
        for _ in range(300):
            await asyncio.sleep(0.9)
            client.take(100)
            client.waiting += 100
        assert not client.ended

    run(main())


def test_above_the_limit_those_that_take_nothing_for_longest_end(monkeypatch):
    monkeypatch.setattr(output, "MOST_BYTES", 150_000)

    async def main() -> None:
        outputs = Outputs()
        reads = Waiting(outputs, 10**9)
        oldest = Waiting(outputs)
        await asyncio.sleep(0.5)
        old, newest = Waiting(outputs), Waiting(outputs)
        for _ in range(20):
            await asyncio.sleep(0.1)
            reads.take(LEAST_BYTES)
        assert (reads.ended, oldest.ended, old.ended, newest.ended) == (False, True, True, True)
        reads.waiting = 0
        clients = [Waiting(outputs) for _ in range(3)]
        await asyncio.sleep(5)
        assert sum(client.ended for client in clients) == 1

    run(main())
