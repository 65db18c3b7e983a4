"""The ingress's own server, over real connections: answers, clients that leave, its end, and a taken address."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from service.gateway.http.listener import Listener, bind
from service.gateway.http.middleware import cancelled_on_disconnect
from service.gateway.ingress import Ingress
from service.settings.settings import Settings
from tests.gateway.generate.helpers import body
from tests.gateway.helpers import eventually, idle
from tests.gateway.local import LocalBackend


class Application:
    """Answers when the test says so. Notes what becomes of its requests."""

    def __init__(self) -> None:
        self.requested, self.answers = asyncio.Event(), asyncio.Event()
        self.ended: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            body = await request.body()
            self.requested.set()
            if scope["path"] == "/stream":
                await StreamingResponse(self._parts())(scope, receive, send)
            else:
                await self.answers.wait()
                await PlainTextResponse(body)(scope, receive, send)
            self.ended.append("answered")
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise

    async def _parts(self) -> AsyncIterator[bytes]:
        yield b"first "
        await self.answers.wait()
        yield b"last"


@pytest.fixture
def app() -> Application:
    return Application()


@pytest.fixture
async def port(app: Application, unused_tcp_port: int) -> AsyncIterator[int]:
    listener = Listener(app, "127.0.0.1", unused_tcp_port)
    yield unused_tcp_port
    app.answers.set()
    await listener.close(5.0)


def client(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)


async def connect(port: int, request: bytes) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    return writer


async def accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return False
    writer.close()
    return True


def post(path: str, body: bytes = b"hello") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


async def test_a_client_that_leaves_within_a_body_ends_the_request(app, port):
    writer = await connect(port, post("/")[:-3])
    writer.close()
    async with client(port) as http:  # the server goes on
        app.answers.set()
        assert (await http.post("/", content="next")).text == "next"
    assert app.ended[-1] == "answered"


async def test_a_stream_ends_when_its_client_leaves(app, port):
    async with client(port) as http, http.stream("POST", "/stream") as response:
        assert await anext(response.aiter_raw()) == b"first "
    app.requested.clear()
    await eventually(lambda: len(app.ended) == 1)
    assert not app.answers.is_set()


async def test_closing_waits_for_requests_and_takes_no_more(app, unused_tcp_port):
    listener = Listener(app, "127.0.0.1", unused_tcp_port)
    assert listener.listens
    async with client(unused_tcp_port) as http:
        answer = asyncio.create_task(http.post("/", content="slow"))
        await app.requested.wait()
        closing = asyncio.create_task(listener.close(60.0))
        while await accepts(unused_tcp_port):
            await asyncio.sleep(0.01)
        app.answers.set()
        assert (await answer).text == "slow"
    await closing
    assert not listener.listens


async def test_a_taken_address_is_an_error(app):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            Listener(app, "127.0.0.1", taken.getsockname()[1])


async def test_small_packets_are_sent_at_once(unused_tcp_port):
    accepted = asyncio.get_running_loop().create_future()

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    bound = bind("127.0.0.1", unused_tcp_port)
    async with await asyncio.get_running_loop().create_server(Protocol, sock=bound):
        writer = await connect(unused_tcp_port, b"")
        assert await accepted
        writer.close()


async def test_a_cancellation_by_the_server_is_raised():
    """A server that ends cancels its requests. Then the application's end is not the client's leaving."""
    gate = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await gate.wait()

    async def stays() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    task = asyncio.create_task(cancelled_on_disconnect(app)({"type": "http"}, stays, lambda _: asyncio.sleep(0)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_request_everywhere(make_generator, gate, unused_tcp_port, stream):
    generator = make_generator(deps=gate.deps)
    ingress = Ingress("i0", Settings(), LocalBackend(generator))
    listener = Listener(ingress.app(answers_request_id=True), "127.0.0.1", unused_tcp_port)
    content = json.dumps(body(max_new_tokens=1900, ignore_eos=True, stream=stream)).encode()
    writer = await connect(unused_tcp_port, post("/generate", content))
    await gate.holds()
    assert (ingress.snapshot().in_flight, generator.snapshot().in_flight) == (1, 1)
    writer.close()
    await eventually(lambda: ingress.snapshot().in_flight == 0)
    gate.release()
    await eventually(lambda: idle(generator))
    await listener.close(5.0)
