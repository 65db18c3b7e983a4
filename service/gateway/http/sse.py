"""Server-sent events: named JSON frames, and comments that keep connections through proxies open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import Message, Send

KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def frame(event: str, data: Any) -> bytes:
    """One named event with a JSON value."""
    return f"event: {event}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


@asynccontextmanager
async def kept_alive(send: Send, period_s: float) -> AsyncIterator[Send]:
    """A `send` for one response. After every `period_s` seconds without a message, a comment is sent.

    If the comment cannot be sent, the block ends with that error.
    """
    loop = asyncio.get_running_loop()
    last = loop.time()

    async def send_noting_when(message: Message) -> None:
        nonlocal last
        last = loop.time()
        await send(message)

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
