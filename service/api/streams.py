"""Server-sent events, and several answers at once: all results, or their items as they come."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0
#: seconds for which a stream's status waits for its first item, so that an error before it has its own status
STATUS_S = 2.0

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

_T = TypeVar("_T")


def frame(event: str, data: Any) -> bytes:
    """One named event with a JSON value."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), to_json(data))


class FrameStream(StreamingResponse):
    """A response made of frames. The frames and their items are closed however the response ends.

    `first`: the first item, which may still be to come from `items`. `headers`: further headers.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        first: asyncio.Future[Any],
        items: AsyncGenerator[Any],
        headers: Mapping[str, str],
    ) -> None:
        self._frames, self._first, self._items = frames, first, items
        super().__init__(self._frames, media_type=MEDIA_TYPE, headers={**HEADERS, **headers})

    async def stream_response(self, send: Send) -> None:
        async with kept_alive(send, KEEP_ALIVE_S) as send_frame:
            await super().stream_response(send_frame)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the frames, then closes the items, which aborts requests that are still decoded."""
        try:
            with suppress(ClientDisconnect):  # no client is left to get the error
                await super().__call__(scope, receive, send)
        finally:
            await self._frames.aclose()
            await _abandon(self._first, self._items)


@asynccontextmanager
async def kept_alive(send: Send, period_s: float) -> AsyncIterator[Send]:
    """A `send` for one response. After every `period_s` seconds without a message, a comment is sent.

    If the comment cannot be sent, the block ends with that error. FastAPI has such comments, too, for endpoints that
    are generators: at the price of two queues and two tasks for each stream.
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


async def first_of(items: AsyncGenerator[_T], within_s: float) -> asyncio.Future[_T]:
    """The first item, which may still be to come after `within_s` seconds. If it raises before, `items` is closed."""
    first = _following(items)
    try:
        await asyncio.wait([first], timeout=within_s)
        if first.done():
            first.result()
    except BaseException:
        await _abandon(first, items)
        raise
    return first


async def _abandon(item: asyncio.Future[Any], items: AsyncGenerator[Any]) -> None:
    """Closes items of which one may still be to come."""
    item.cancel()
    await asyncio.shield(_close([item], [items]))


async def all_of(jobs: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results in order. The first error, or a cancellation of the caller, cancels the other jobs."""
    if len(jobs) == 1:
        return [await jobs[0]]
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))


async def merged(streams: Sequence[AsyncGenerator[_T]]) -> AsyncGenerator[tuple[int, _T]]:
    """The items of all streams as they come, each with the index of its stream.

    Each stream computes one item ahead. Closing the merged stream, or an error in one stream, closes all.
    """
    pending = {_following(stream): index for index, stream in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=pending.__getitem__):
                index = pending.pop(task)
                if (item := task.result()) is not None:
                    pending[_following(streams[index])] = index
                    yield index, item
    finally:
        for task in pending:
            task.cancel()
        await asyncio.shield(_close(list(pending), streams))


def _following(stream: AsyncGenerator[_T]) -> asyncio.Future[Any]:
    """The next item, None after the last."""
    return asyncio.ensure_future(anext(stream, None))


async def _close(tasks: Sequence[asyncio.Future[Any]], streams: Sequence[AsyncGenerator[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
    for stream in streams:
        await stream.aclose()
