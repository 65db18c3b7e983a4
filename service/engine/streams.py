"""The items of requests as asyncio streams, wherever the engine runs.

Items come from any thread. They wake an event loop once for all its requests.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field

from service.engine.request import BlockEvent, BlockProgress, RequestFailed
from service.errors import MrpServeError

_log = logging.getLogger(__name__)

Item = BlockEvent | BlockProgress | RequestFailed


def ends(item: Item) -> bool:
    """Whether an item is the last one of its request."""
    return not isinstance(item, BlockProgress) and (isinstance(item, RequestFailed) or item.finish_reason is not None)


@dataclass(slots=True)
class _Stream:
    """The items of one request."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)


class RequestStreams:
    """The streams of all requests of an engine. `abort`: ends a request of the engine."""

    def __init__(self, abort: Callable[[str], None]) -> None:
        self._abort = abort
        self._streams: dict[str, _Stream] = {}
        self._changed = threading.Lock()

    def __len__(self) -> int:
        return len(self._streams)

    async def open(self, request_id: str, submit: Callable[[], None]) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """Submits a request, and gives its items to the last. Closing the generator aborts the request.

        `submit` gives it to the engine, and refuses an id that is in use. Raises what `submit` raises, and the error
        that ended the request.
        """
        stream = _Stream(asyncio.get_running_loop())
        with self._changed:  # the engine's thread may have items before the stream is there
            submit()
            self._streams[request_id] = stream
        finished = False
        try:
            while not finished:
                item = await stream.queue.get()
                finished = ends(item)
                if isinstance(item, RequestFailed):
                    raise item.error
                yield item
        finally:
            if not finished and self._drop(request_id):
                self._abort(request_id)

    def deliver(self, items: Iterable[Item]) -> None:
        """Passes items to their streams, with one wake-up for each event loop. Any thread may call it."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, Item]]] = {}
        for stream, item in self._followed(items):
            by_loop.setdefault(stream.loop, []).append((stream, item))
        for loop, pairs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put, pairs)
            except RuntimeError:  # the loop is closed, so no client is left
                _log.debug("an event loop closed before its events came")

    def deliver_here(self, items: Iterable[Item]) -> None:
        """Passes items to their streams. All streams are read on the event loop that calls it."""
        _put(self._followed(items))

    def fail(self, error: Callable[[], MrpServeError]) -> None:
        """Ends all streams, each with an error of its own: raising an error extends its traceback."""
        with self._changed:
            failed = list(self._streams)
        self.deliver(RequestFailed(request_id, error()) for request_id in failed)

    def _followed(self, items: Iterable[Item]) -> list[tuple[_Stream, Item]]:
        """The items that somebody waits for. Streams whose last item is among them are forgotten."""
        followed = []
        with self._changed:
            for item in items:
                take = self._streams.pop if ends(item) else self._streams.get
                if (stream := take(item.request_id, None)) is not None:
                    followed.append((stream, item))
        return followed

    def _drop(self, request_id: str) -> bool:
        """Whether the stream was there. An item that ends it may be on its way to the event loop."""
        with self._changed:
            return self._streams.pop(request_id, None) is not None


def _put(pairs: list[tuple[_Stream, Item]]) -> None:
    for stream, item in pairs:
        stream.queue.put_nowait(item)
