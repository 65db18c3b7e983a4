"""A stream whose client leaves before the first item: nothing goes on behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.requests import ClientDisconnect

from service.api.streams import FrameStream, first_of


class Items:
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
async def test_the_items_end_if_the_status_or_the_next_message_cannot_be_sent(sent: int) -> None:
    items, messages = Items(), list[object]()
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


async def test_an_error_before_the_status_closes_the_items() -> None:
    async def broken() -> AsyncGenerator[int]:
        raise ValueError
        yield 1

    with pytest.raises(ValueError):  # noqa: PT011 - it has no text
        await first_of(broken(), 1)
