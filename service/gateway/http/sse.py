"""Server-sent events: named JSON frames, and comments that keep connections through proxies open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from pydantic_core import to_json
from starlette.types import Message, Send

KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def frame(event: str, data: Any) -> bytes:
    """One named event with a JSON value."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), to_json(data))


@asynccontextmanager
async def kept_alive(send: Send, period_s: float) -> AsyncIterator[Send]:
    """A `send` for one response. After every `period_s` seconds without a message, a comment is sent.

    If the comment cannot be sent, the block ends with that error.
    """
    loop = asyncio.get_running_loop()
    last = loop.time()

    def send_noting_when(message: Message) -> Awaitable[None]:
        nonlocal last
        last = loop.time()
        return send(message)

    async def comment() -> None:
        while True:
            if (silent_s := loop.time() - last) >= period_s:
                await send_noting_when({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
            await asyncio.sleep(max(0.0, period_s - silent_s))

    try:
        async with asyncio.TaskGroup() as both:
            comments = both.create_task(comment())
            yield send_noting_when
            comments.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
