"""Heads and bodies without end, slow clients and too many connections, over real connections."""

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send
from uvicorn.config import HTTP_PROTOCOLS

from service import hooks
from service.gateway.http import guarded, output, sockets
from service.gateway.http.heads import MAX_FIELDS, MAX_HEAD
from service.gateway.http.listener import Listener

BEGUN = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = BEGUN + b"Transfer-Encoding: chunked\r\n\r\n"


class Echo:
    """Answers with the body, in parts, or for ever."""

    def __init__(self) -> None:
        self.requested, self.release, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.requested.set()
        try:
            if scope["path"] == "/never":
                while not await request.is_disconnected():
                    await asyncio.sleep(0.01)
                return None
            if scope["path"] == "/held":
                return await StreamingResponse(self._held_parts())(scope, receive, send)
            if scope["path"] == "/parts":
                parts = iter((b"one ", b"two ", b"three"))
                return await StreamingResponse(parts)(scope, receive, send)
            if scope["path"] == "/endless":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                while not await request.is_disconnected():
                    await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await PlainTextResponse(await request.body())(scope, receive, send)
        except ClientDisconnect:
            pass
        finally:
            self.ended.set()

    async def _held_parts(self) -> AsyncIterator[bytes]:
        yield b"one"
        await self.release.wait()
        yield b"two"


@pytest.fixture
def app() -> Echo:
    return Echo()


@pytest.fixture
async def port(app: Echo, unused_tcp_port: int) -> AsyncIterator[int]:
    listener = Listener(app, "127.0.0.1", unused_tcp_port)
    yield unused_tcp_port
    await listener.close(1.0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_S", "PAUSE_S", "_POLL_S"):
        monkeypatch.setattr(guarded, name, 0.05)
    monkeypatch.setattr(output, "LIMIT_S", 0.05)


async def sent(port: int, *parts: bytes) -> bytes:
    """What comes back for these bytes, until the server ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(120):
            return await reader.read()
    finally:
        writer.close()


def error(answer: bytes, status: int) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"connection: close" in head
    detail: dict[str, Any] = json.loads(body)["error"]
    assert detail.keys() == {"code", "message", "param", "request_id"}
    assert f"x-request-id: {detail['request_id']}".encode() in head
    return detail


async def answers(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        assert (await http.post("/", content=b"hello")).text == "hello"


class TestHeads:
    @pytest.mark.parametrize(
        "head",
        [
            [b"GET /" + b"p" * MAX_HEAD],
            [BEGUN + b"X: ", *[b"y" * 1000] * 70],
            [BEGUN, *[b"X: y\r\n" * 200] * 70],
            [CHUNKED + b"1;e=", *[b"y" * 1000] * 70],
            [CHUNKED + b"1\r\na\r\n0\r\nX: ", *[b"y" * 1000] * 70],
        ],
        ids=["path", "value", "fields", "extension", "trailer"],
    )
    async def test_a_head_that_does_not_end_is_refused(self, port, head):
        detail = error(await sent(port, *head), 431)
        assert detail["code"] == "head_too_large"
        assert str(MAX_HEAD) in detail["message"]
        await answers(port)

    async def test_a_client_that_goes_on_is_cut_off(self, port):
        with pytest.raises(ConnectionError):
            await sent(port, BEGUN + b"X: ", *[b"y" * 65536] * 500)
        await answers(port)

    async def test_a_head_of_too_many_fields_is_refused(self, port):
        allowed = b"".join(b"X-%d: y\r\n" % number for number in range(MAX_FIELDS - 3))
        last = b"Content-Length: 0\r\nConnection: close\r\n\r\n"
        assert (await sent(port, BEGUN + allowed + last)).startswith(b"HTTP/1.1 200")
        detail = error(await sent(port, BEGUN + allowed + b"Y: z\r\n" + last), 431)
        assert detail["message"] == f"the head has {MAX_FIELDS + 1} fields, allowed are {MAX_FIELDS}"

    async def test_bytes_that_are_no_head_are_refused(self, port):
        assert error(await sent(port, b"\x16\x03\x01\x02\x00\r\n\r\n"), 400)["code"] == "invalid_http"

    @pytest.mark.parametrize(
        ("fields", "status", "text"),
        [
            (b"Host: x\r\nTransfer-Encoding: gzip, chunked\r\n", 501, "'gzip, chunked', allowed is chunked"),
            (b"Host: x\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 501, "'gzip, chunked'"),
            (b"", 400, "the head has 0 fields `Host`, expected is one"),
            (b"Host: x\r\nHost: y\r\n", 400, "the head has 2 fields `Host`, expected is one"),
            (b"Host: a, b\r\n", 400, "`Host` is 'a, b', allowed is one name or address"),
            (b"Host: a/b\r\n", 400, "'a/b'"),
            (b"Host: a@b\r\n", 400, "'a@b'"),
            (b"Host: a:b\r\n", 400, "'a:b'"),
            (b"Host: [::1\r\n", 400, "'[::1'"),
        ],
    )
    async def test_an_ambiguous_head_is_refused(self, port, fields, status, text):
        answer = await sent(port, b"POST / HTTP/1.1\r\n" + fields + b"\r\n0\r\n\r\n")
        assert text in error(answer, status)["message"]
        await answers(port)

    @pytest.mark.parametrize(
        ("line", "status", "text"),
        [
            (
                b"GET http://x/admin/weights HTTP/1.1",
                400,
                "'http://x/admin/weights', allowed is a path that begins with",
            ),
            (b"GET http://x HTTP/1.1", 400, "the target is 'http://x'"),
            (b"GET HTTPS://x:1/?secret HTTP/1.1", 400, "the target is 'HTTPS://x:1/',"),
            (b"GET /live#x HTTP/1.1", 400, "'/live#x'"),
            (b"CONNECT x:80 HTTP/1.1", 501, "the method is CONNECT"),
            (b"GET / HTTP/2.0", 505, "the version is HTTP/2.0, allowed are 1.0 and 1.1"),
            (b"GET /", 505, "the version is HTTP/0.9"),
        ],
    )
    async def test_a_target_has_one_form(self, port, line, status, text):
        assert text in error(await sent(port, line + b"\r\nHost: x\r\n\r\n"), status)["message"]
        await answers(port)

    @pytest.mark.parametrize("host", [b"", b"x", b"x_1.y:80", b"127.0.0.1:", b"[::1]:8000", b"[fe80::1%25eth0]"])
    async def test_a_host_is_a_name_or_an_address(self, port, host):
        answer = await sent(port, b"GET / HTTP/1.1\r\nConnection: close\r\nHost: " + host + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")

    @pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b" chunked "])
    async def test_chunked_bodies_are_read(self, port, coding):
        head = BEGUN + b"Connection: close\r\nTransfer-Encoding:" + coding + b"\r\n\r\n"
        assert (await sent(port, head + b"2\r\nhi\r\n0\r\n\r\n")).endswith(b"\r\n\r\nhi")

    async def test_a_body_may_be_longer_than_a_head(self, port):
        content = bytes(3 * MAX_HEAD)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            for _ in range(3):
                assert (await http.post("/", content=content)).content == content

    async def test_many_pipelined_requests_are_answered(self, port):
        request = BEGUN + b"Content-Length: 1\r\n\r\na"
        last = BEGUN + b"Content-Length: 1\r\nConnection: close\r\n\r\na"
        assert (await sent(port, request * 3000 + last)).count(b"HTTP/1.1 200") == 3001


class TestHttp10:
    """Its clients know no chunks: an answer without a length ends with its connection."""

    async def test_a_stream_ends_with_its_connection(self, port):
        head, _, body = (await sent(port, b"GET /parts HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")
        assert body == b"one two three"
        assert b"connection: close" in head
        assert b"transfer-encoding" not in head

    @pytest.mark.parametrize("field", [b"", b"Expect: 100-continue\r\n"])
    async def test_a_whole_answer_has_its_length(self, port, field):
        answer = await sent(port, b"POST / HTTP/1.0\r\n" + field + b"Content-Length: 2\r\n\r\nhi")
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"content-length: 2" in answer
        assert answer.endswith(b"\r\n\r\nhi")


UPGRADES = [
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n",  # Java's client
    b"Connection: upgrade\r\nUpgrade: TLS/1.0\r\nUpgrade: websocket\r\n",
]
SIZED, CHUNKS = (
    b"Content-Length: 2\r\n\r\nhi",
    b"Transfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\nX-T: 1\r\n\r\n",
)
LAST = BEGUN + b"Connection: close\r\nContent-Length: 3\r\n\r\nbye"


@pytest.mark.parametrize("upgrade", UPGRADES, ids=["h2c", "others"])
class TestUpgrades:
    """Another protocol that a client offers is not taken, so the request is answered."""

    @pytest.mark.parametrize("body", [SIZED, CHUNKS, b"Expect: 100-continue \r\n" + SIZED, b"\r\n"])
    @pytest.mark.parametrize("size", [1, 65536])
    async def test_the_request_and_the_next_are_answered(self, port, upgrade, body, size):
        content = BEGUN + upgrade + body + LAST
        answer = await sent(port, *(content[start : start + size] for start in range(0, len(content), size)))
        expected = b"" if body == b"\r\n" else b"hi"
        statuses = ([b"100"] if b"Expect" in body else []) + [b"200", b"200"]
        assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == statuses
        assert answer.split(b"HTTP/1.1 ")[-2].endswith(b"\r\n\r\n" + expected)
        assert answer.endswith(b"\r\n\r\nbye")

    @pytest.mark.parametrize("line", [b"POST / HTTP/1.0\r\n", BEGUN + b"Connection: close\r\n"])
    async def test_an_answer_that_closes_the_connection_is_there(self, port, upgrade, line):
        assert (await sent(port, line + upgrade + SIZED)).endswith(b"\r\n\r\nhi")


async def half_closed(port: int, *parts: bytes) -> bytes:
    """What comes back if the client says after the last part that it sends no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    writer.write_eof()
    async with asyncio.timeout(120):
        answer = await reader.read()
    writer.close()
    return answer


class TestHalfClosedClients:
    """Clients that send no more, and read."""

    @pytest.mark.parametrize(
        ("content", "texts"),
        [
            (BEGUN + SIZED, [b"hi"]),
            (BEGUN + CHUNKS, [b"hi"]),
            (b"POST / HTTP/1.0\r\n" + SIZED, [b"hi"]),
            (BEGUN + UPGRADES[0] + SIZED, [b"hi"]),
            ((BEGUN + SIZED) * 200, [b"hi"] * 200),
            (BEGUN + SIZED + BEGUN + SIZED[:-1], [b"hi"]),
            (BEGUN + SIZED + BEGUN, [b"hi"]),
            (BEGUN + SIZED[:-1], []),
            (BEGUN, []),
            (b"", []),
        ],
    )
    async def test_whole_requests_are_answered(self, port, content, texts):
        answer = (await half_closed(port, content)).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
        assert [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200")[1:]] == texts

    async def test_a_stream_goes_on(self, port, app):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"one\r\n")
        writer.write_eof()
        await reader.readuntil(b"0")  # the question whether the client is there
        app.release.set()
        async with asyncio.timeout(120):
            assert await reader.read() == b"3\r\ntwo\r\n0\r\n\r\n"
        writer.close()

    @pytest.mark.parametrize("path", [b"/held", b"/never"])
    async def test_a_client_that_left_ends_its_request(self, port, app, path):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
        await app.requested.wait()
        if path == b"/held":
            await reader.readuntil(b"one\r\n")
        writer.close()
        async with asyncio.timeout(120):
            await app.ended.wait()
        assert not app.release.is_set()

    @pytest.mark.parametrize(
        "wrong", [b"garbage\r\n\r\n", BEGUN + b"Host: y\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"y" * 2 * MAX_HEAD]
    )
    async def test_a_wrong_request_takes_no_earlier_answer(self, port, wrong):
        answer = await sent(port, BEGUN + SIZED + wrong)
        first, _, last = answer.partition(b"hi")
        assert first.startswith(b"HTTP/1.1 200")
        error(last, 431 if len(wrong) > MAX_HEAD else 400)


@pytest.mark.usefixtures("hasty")
class TestSlowClients:
    async def test_a_client_that_sends_nothing_is_closed(self, port):
        assert await sent(port) == b""

    @pytest.mark.parametrize("before", [b"", BEGUN + b"Content-Length: 0\r\n\r\n"], ids=["first", "second"])
    async def test_an_unfinished_head_is_a_time_out(self, port, before):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if before:
            writer.write(before)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(BEGUN)
        async with asyncio.timeout(120):
            assert error(await reader.read(), 408)["message"] == "the head took more than 0.05 s"
        writer.close()

    async def test_an_unfinished_body_is_a_time_out(self, port, app):
        answer = await sent(port, BEGUN + b"Content-Length: 9\r\n\r\nabc")
        assert error(answer, 408)["message"] == "no byte of the body came for 0.05 s"
        await app.ended.wait()

    async def test_an_endless_body_is_a_time_out(self, port, app, monkeypatch):
        monkeypatch.setattr(guarded, "PAUSE_S", 60.0)
        monkeypatch.setattr(guarded, "BODY_S", 0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED)
        async with asyncio.timeout(120):
            while not reader.at_eof() and not reader._buffer:  # type: ignore[attr-defined]
                writer.write(b"1\r\na\r\n")
                await asyncio.sleep(0.01)
            message = error(await reader.read(), 408)["message"]
        assert message == "the body took more than 0.05 s and 1 s for each 16384 bytes"
        await app.ended.wait()
        writer.close()

    async def test_a_body_has_time_for_its_bytes(self, port, monkeypatch):
        monkeypatch.setattr(guarded, "PAUSE_S", 60.0)
        monkeypatch.setattr(guarded, "BODY_S", 0.05)
        monkeypatch.setattr(guarded, "BYTES_PER_S", 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(BEGUN + b"Connection: close\r\nContent-Length: 1001\r\n\r\n" + b"a" * 1000)
        await asyncio.sleep(0.3)
        writer.write(b"b")
        async with asyncio.timeout(120):
            assert (await reader.read()).endswith(b"aab")
        writer.close()


async def busy_connections(port: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Eight connections whose answers do not end."""
    busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
    for reader, writer in busy:
        writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.read(1)
    return busy


class TestManyConnections:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(guarded, "max_connections", lambda: 8)
        monkeypatch.setattr(output, "_POLL_S", 60.0)

    async def test_the_oldest_idle_connection_is_closed_for_a_new_one(self, port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        await answers(port)
        async with asyncio.timeout(120):
            assert await idle[0][0].read() == b""  # the oldest one
        idle[-1][1].write(BEGUN + b"Content-Length: 0\r\n\r\n")
        assert (await idle[-1][0].read(9)) == b"HTTP/1.1 "
        for _, writer in idle:
            writer.close()

    async def test_connections_with_a_request_stay(self, port):
        busy = await busy_connections(port)
        assert error(await sent(port, CHUNKED), 503)["code"] == "too_many_connections"
        for _, writer in busy:
            writer.close()

    async def test_connections_whose_answers_are_not_read_are_closed_for_a_new_one(self, port, monkeypatch):
        busy = await busy_connections(port)
        monkeypatch.setattr(output, "_POLL_S", 0.0)
        await answers(port)
        for _, writer in busy:
            writer.close()

    async def test_a_few_more_connections_may_request_the_health(self, port, monkeypatch):
        """A liveness probe beside as many answers as there may be connections."""
        monkeypatch.setattr(guarded, "_EXTRA", 1)
        busy = await busy_connections(port)
        probe = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(probe)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.read(1)
        assert error(await sent(port, probe), 503)["code"] == "too_many_connections"
        for _, connection in [*busy, (reader, writer)]:
            connection.close()

    async def test_the_slowest_unfinished_body_is_closed_for_a_new_connection(self, port, app, monkeypatch):
        """The last of eight began last, the first has sent most."""
        monkeypatch.setattr(guarded, "BYTES_PER_S", 1)
        bodies = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        for number, (_, writer) in enumerate(bodies):
            writer.write(BEGUN + b"Content-Length: 5001\r\n\r\n" + b"a" * (5000 if not number else 1))
            await writer.drain()
            await asyncio.sleep(0.01)
        await answers(port)
        async with asyncio.timeout(120):
            assert error(await bodies[1][0].read(), 503)["code"] == "too_many_connections"
        bodies[0][1].write(b"a")
        assert (await bodies[0][0].read(12)) == b"HTTP/1.1 200"
        for _, writer in bodies:
            writer.close()


def test_serves_proxies_have_the_protocol(monkeypatch, app):
    monkeypatch.setitem(HTTP_PROTOCOLS, "auto", HTTP_PROTOCOLS["auto"])  # for the tests after this one
    hooks.proxy_middleware()
    config = uvicorn.Config(app)
    config.load()
    assert config.http_protocol_class is guarded.GuardedProtocol


def test_a_small_limit_of_open_files_leaves_room_for_others(monkeypatch):
    for files, most in ((64, 16), (1024, 768), (2**20, 16384), (resource.RLIM_INFINITY, 16384)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert sockets.max_connections() == most
