"""Server-sent events: named JSON frames, and comments that keep connections through proxies open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def frame(event: str, data: Any) -> bytes:
    """One named event with a JSON value."""
    return f"event: {event}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


async def with_keep_alive(frames: AsyncGenerator[bytes], period_s: float = KEEP_ALIVE_S) -> AsyncGenerator[bytes]:
    """The frames, with a comment after every `period_s` seconds without one. Closes `frames` at the end."""
    async with aclosing(frames):
        following = asyncio.ensure_future(anext(frames, None))
        try:
            while True:
                done, _ = await asyncio.wait({following}, timeout=period_s)
                if not done:
                    yield KEEP_ALIVE
                elif (item := following.result()) is None:
                    return
                else:
                    following = asyncio.ensure_future(anext(frames, None))
                    yield item
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
