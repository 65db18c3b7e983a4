"""An answer as a stream of server-sent events: `block` frames, then `done` or `error`. On request also `step` frames.

The status is sent after the first item, so an error before it has its own HTTP status. However the response ends,
the stream of items is closed, which aborts the request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from service.errors import MrpServeError
from service.gateway.http.answers import block_json, done_json, error_json, step_json
from service.gateway.http.sse import HEADERS, KEEP_ALIVE_S, MEDIA_TYPE, frame, kept_alive
from service.telemetry.faults import unexpected_error
from service.wire import Chunk, Ending, ModelCard, Progress, Work

Item = Progress | Chunk | Ending


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the frames of one answer need. `count` gets an error that ends the stream."""

    work: Work
    card: ModelCard
    request_id: str
    count: Callable[[MrpServeError], None]


class FrameStream(StreamingResponse):
    """A response made of frames. The frames and their items are closed however the response ends."""

    def __init__(self, frames: AsyncGenerator[bytes], items: AsyncGenerator[Any]) -> None:
        self._frames, self._items = frames, items
        super().__init__(self._frames, media_type=MEDIA_TYPE, headers=HEADERS)

    async def stream_response(self, send: Send) -> None:
        """Sends the frames, and comments while none comes."""
        async with kept_alive(send, KEEP_ALIVE_S) as send_frame:
            await super().stream_response(send_frame)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the frames, then closes the items, which aborts requests that are still decoded."""
        try:
            with suppress(ClientDisconnect):  # no client is left to get the error
                await super().__call__(scope, receive, send)
        finally:
            await self._frames.aclose()
            await self._items.aclose()


def event_stream(first: Item, items: AsyncGenerator[Item], exchange: Exchange) -> FrameStream:
    """The items of one answer as events."""
    return FrameStream(_frames(first, items, exchange), items)


async def first_of(items: AsyncGenerator[Item]) -> Item:
    """The first item of an answer. If it raises, `items` is closed."""
    try:
        return await anext(items)
    except BaseException:
        await items.aclose()
        raise


async def _frames(first: Item, items: AsyncGenerator[Item], exchange: Exchange) -> AsyncGenerator[bytes]:
    try:
        yield _frame(first, exchange)
        async for item in items:
            yield _frame(item, exchange)
    except MrpServeError as error:
        yield _error_frame(error, exchange)
    except Exception as error:  # noqa: BLE001 - the status is sent, so only a frame can report the error
        yield _error_frame(unexpected_error(error, exchange.request_id), exchange)


def _frame(item: Item, exchange: Exchange) -> bytes:
    if isinstance(item, Chunk):
        return frame("block", block_json(item, exchange.work))
    if isinstance(item, Progress):
        return b"".join(frame("step", step) for step in step_json(item))
    return frame("done", done_json(item, exchange.work, exchange.card))


def _error_frame(error: MrpServeError, exchange: Exchange) -> bytes:
    exchange.count(error)
    return frame("error", error_json(error, exchange.request_id))
