"""Items of requests as asyncio streams, wherever the engine runs.

Items come from any thread. They wake an event loop once for all its requests.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field

from service.engine.request import BlockEvent, BlockProgress, GenerationRequest
from service.errors import InvalidRequest, MrpServeError

_log = logging.getLogger(__name__)

Item = BlockEvent | BlockProgress | MrpServeError


def ends(item: Item) -> bool:
    """Whether an item is the last one of its request."""
    return not isinstance(item, BlockProgress) and (isinstance(item, MrpServeError) or item.finish_reason is not None)


@dataclass(slots=True)
class _Stream:
    """The items of one request."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)


class Streams:
    """The streams of all requests of an engine. `submit` and `abort`: give the engine a request, and end one."""

    def __init__(self, submit: Callable[[GenerationRequest], None], abort: Callable[[str], None]) -> None:
        self._submit, self._abort = submit, abort
        self._streams: dict[str, _Stream] = {}
        self._changed = threading.Lock()

    def __len__(self) -> int:
        return len(self._streams)

    async def follow(self, request: GenerationRequest) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """Submits a request, and gives its items to the last. Closing the generator aborts the request.

        Raises what `submit` raises, what ended the request, and InvalidRequest if its id is in use.
        """
        request_id, stream = request.request_id, _Stream(asyncio.get_running_loop())
        with self._changed:
            if request_id in self._streams:
                raise InvalidRequest(f"request id {request_id!r} is in use", param="request_id")
            self._streams[request_id] = stream
        try:
            self._submit(request)
        except BaseException:
            self._drop(request_id)
            raise
        finished = False
        try:
            while not finished:
                item = await stream.queue.get()
                finished = ends(item)
                if isinstance(item, MrpServeError):
                    raise item
                yield item
        finally:
            if not finished and self._drop(request_id):
                self._abort(request_id)

    def deliver(self, items: Iterable[tuple[str, Item]]) -> None:
        """Passes items to their streams, with one wake-up for each event loop. Any thread may call it."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, Item]]] = {}
        for stream, item in self._followed(items):
            by_loop.setdefault(stream.loop, []).append((stream, item))
        for loop, pairs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put, pairs)
            except RuntimeError:  # the loop is closed, so no client is left
                _log.debug("an event loop closed before its events came")

    def put(self, items: Iterable[tuple[str, Item]]) -> None:
        """Passes items to their streams, of which all are followed on the event loop that calls it."""
        _put(self._followed(items))

    def fail(self, error: Callable[[], MrpServeError]) -> None:
        """Ends all streams, each with an error of its own: raising an error extends its traceback."""
        with self._changed:
            failed = list(self._streams)
        self.deliver((request_id, error()) for request_id in failed)

    def _followed(self, items: Iterable[tuple[str, Item]]) -> list[tuple[_Stream, Item]]:
        """The items that somebody waits for. Streams whose last item is among them are forgotten."""
        found = []
        with self._changed:
            for request_id, item in items:
                stream = self._streams.pop(request_id, None) if ends(item) else self._streams.get(request_id)
                if stream is not None:
                    found.append((stream, item))
        return found

    def _drop(self, request_id: str) -> bool:
        """Whether the stream was there. An item that ends it may be on its way to the event loop."""
        with self._changed:
            return self._streams.pop(request_id, None) is not None


def _put(pairs: list[tuple[_Stream, Item]]) -> None:
    for stream, item in pairs:
        stream.queue.put_nowait(item)
