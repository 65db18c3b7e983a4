"""Server-sent events: frames, keep-alive comments, and the end of a stream with an error."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from service.api.streams import KEEP_ALIVE, FrameStream, first_of, kept_alive
from service.messages.wire import Chunk
from tests.gateway.doubles import STATS

FIRST = Chunk(0, "a", (1,), STATS)


class Sent:
    """What a response sends. `broken`: from the second message on the client is gone."""

    def __init__(self, broken: bool = False) -> None:
        self.bodies: list[bytes] = []
        self.commented = asyncio.Event()
        self._broken = broken

    async def __call__(self, message: Message) -> None:
        if self._broken and self.bodies:
            raise OSError("the client has left")
        self.bodies.append(message["body"])
        if message["body"] == KEEP_ALIVE:
            assert message["more_body"]
            self.commented.set()


def part(text: bytes) -> Message:
    return {"type": "http.response.body", "body": text, "more_body": True}


class TestKeepAlive:
    """`period_s` is far too long or nothing at all, so no test waits for time to pass."""

    async def test_no_comment_while_frames_come(self):
        sent = Sent()
        async with kept_alive(sent, period_s=1000) as send:
            for text in (b"1", b"2", b"3"):
                await send(part(text))
                await asyncio.sleep(0)
        assert sent.bodies == [b"1", b"2", b"3"]

    async def test_comments_come_while_no_frame_comes(self):
        sent = Sent()
        async with kept_alive(sent, period_s=0) as send:
            await send(part(b"1"))
            await sent.commented.wait()
            await send(part(b"2"))
        await asyncio.sleep(0)
        assert (sent.bodies[0], sent.bodies[-1]) == (b"1", b"2")
        assert set(sent.bodies[1:-1]) == {KEEP_ALIVE}

    async def test_a_client_that_left_while_nothing_came_ends_the_stream(self):
        async def stream() -> None:
            async with kept_alive(Sent(broken=True), period_s=0) as send:
                await send(part(b"1"))
                await asyncio.Event().wait()

        with pytest.raises(OSError, match="has left"):
            await stream()


class SilentItems:
    """Items that never come. `closed`: whether their generator has ended."""

    def __init__(self) -> None:
        self.closed = False

    async def all(self) -> AsyncGenerator[int]:
        try:
            await asyncio.Event().wait()
            yield 1
        finally:
            self.closed = True


@pytest.mark.parametrize("sent", [0, 1])
async def test_the_items_end_if_the_status_or_the_next_message_cannot_be_sent(sent):
    items, messages = SilentItems(), list[object]()
    generator = items.all()
    first = await first_of(generator, 0.01)
    assert not first.done()

    async def frames() -> AsyncGenerator[bytes]:
        yield b"a comment"
        yield str(await first).encode()

    async def send(message: object) -> None:
        if len(messages) == sent:
            raise ClientDisconnect
        messages.append(message)

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    await FrameStream(frames(), first, generator, {})(scope, receive, send)
    assert items.closed
    assert first.cancelled()


async def test_an_error_before_the_status_closes_the_items():
    async def broken() -> AsyncGenerator[int]:
        raise ValueError
        yield 1

    with pytest.raises(ValueError):  # noqa: PT011 - it has no text
        await first_of(broken(), 1)
