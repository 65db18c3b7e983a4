"""The outputs of requests as asyncio streams, in the process of the engine or in another one.

Any thread may deliver outputs. A delivery wakes an event loop once for all its requests.
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

EngineOutput = BlockEvent | BlockProgress | RequestFailed


def ends(output: EngineOutput) -> bool:
    """Whether an output is the last one of its request."""
    return isinstance(output, RequestFailed) or (isinstance(output, BlockEvent) and output.finish_reason is not None)


@dataclass(slots=True)
class _Stream:
    """The outputs of one request."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[EngineOutput] = field(default_factory=asyncio.Queue)


class RequestStreams:
    """The streams of all requests of an engine. `abort`: ends a request of the engine."""

    def __init__(self, abort: Callable[[str], None]) -> None:
        self._abort = abort
        self._streams: dict[str, _Stream] = {}
        self._changed = threading.Lock()

    def __len__(self) -> int:
        return len(self._streams)

    async def open(self, request_id: str, submit: Callable[[], None]) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """Submits a request, and yields its outputs to the last one. Closing the generator aborts the request.

        `submit`: passes the request to the engine, and refuses an id that is in use. Raises the errors of `submit`, and
        the error that ended the request.
        """
        stream = _Stream(asyncio.get_running_loop())
        with self._changed:  # the engine's thread may have outputs before the stream exists
            submit()
            self._streams[request_id] = stream
        finished = False
        try:
            while not finished:
                output = await stream.queue.get()
                finished = ends(output)
                if isinstance(output, RequestFailed):
                    raise output.error
                yield output
        finally:
            if not finished and self._drop(request_id):
                self._abort(request_id)

    def deliver(self, outputs: Iterable[EngineOutput]) -> None:
        """Passes outputs to their streams, with one wake-up for each event loop. Any thread may call it."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, EngineOutput]]] = {}
        for stream, output in self._with_streams(outputs):
            by_loop.setdefault(stream.loop, []).append((stream, output))
        for loop, pairs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_enqueue, pairs)
            except RuntimeError:  # the loop is closed, so no client is left
                _log.debug("an event loop closed before its events came")

    def deliver_on_loop(self, outputs: Iterable[EngineOutput]) -> None:
        """Passes outputs to their streams. All streams are read on the event loop that calls it."""
        _enqueue(self._with_streams(outputs))

    def fail(self, error: Callable[[], MrpServeError]) -> None:
        """Ends all streams, each with another error object: raising an error extends its traceback."""
        with self._changed:
            failed = list(self._streams)
        self.deliver(RequestFailed(request_id, error()) for request_id in failed)

    def _with_streams(self, outputs: Iterable[EngineOutput]) -> list[tuple[_Stream, EngineOutput]]:
        """The outputs that have a stream, with their streams. Drops a stream with its last output."""
        pairs = []
        with self._changed:
            for output in outputs:
                find = self._streams.pop if ends(output) else self._streams.get
                if (stream := find(output.request_id, None)) is not None:
                    pairs.append((stream, output))
        return pairs

    def _drop(self, request_id: str) -> bool:
        """Drops a stream. False if it is dropped already: its last output is then on its way to the event loop."""
        with self._changed:
            return self._streams.pop(request_id, None) is not None


def _enqueue(pairs: list[tuple[_Stream, EngineOutput]]) -> None:
    for stream, output in pairs:
        stream.queue.put_nowait(output)
