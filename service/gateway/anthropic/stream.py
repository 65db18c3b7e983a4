"""A message as Anthropic's server-sent events, from `message_start` to `message_stop`, or to `error`.

The status is sent after the first item. A later error is an event `error`, which Anthropic's client raises.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from service.gateway.anthropic.answers import Json, Writer
from service.gateway.http.sse import frame
from service.gateway.http.streams import FrameStream, Item
from service.wire import Chunk, Ending, Progress


def message_stream(
    first: Item, items: AsyncGenerator[Item], writer: Writer, failed: Callable[[Exception], dict[str, Any]]
) -> FrameStream:
    """The items of the answer as events. `failed`: counts an error that ends the stream and makes its event."""
    return FrameStream(_frames(first, items, writer, failed), items)


async def _frames(
    first: Item, items: AsyncGenerator[Item], writer: Writer, failed: Callable[[Exception], dict[str, Any]]
) -> AsyncGenerator[bytes]:
    try:
        if not isinstance(first, Progress):  # this route asks for no steps
            yield _written(writer.opening(first))
        yield _written(_events(first, writer))
        async for item in items:
            yield _written(_events(item, writer))
    except Exception as error:  # noqa: BLE001 - the status is sent, so only an event can report the error
        yield frame("error", failed(error))


def _events(item: Item, writer: Writer) -> Iterable[Json]:
    if isinstance(item, Ending):
        return writer.closing(item)
    return writer.piece(item) if isinstance(item, Chunk) else ()


def _written(events: Iterable[Json]) -> bytes:
    return b"".join(frame(event["type"], event) for event in events)
