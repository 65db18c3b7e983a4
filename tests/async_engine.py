"""An engine on a thread of the test's process, whose outputs the test's event loop reads as streams."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial

from service.engine import BlockEvent, BlockProgress, Engine, GenerationRequest
from service.engine.streams import EngineOutput, RequestStreams
from service.engine.thread import EngineThread
from service.settings import defaults


class AsyncEngine(EngineThread):
    """An `EngineThread` with streams. All streams are read on one event loop."""

    def __init__(self, engine: Engine, max_waiting: int = defaults.MAX_WAITING) -> None:
        super().__init__(engine, self._deliver_to_loop, max_waiting)
        self._streams = RequestStreams(self.abort)
        self._loop: asyncio.AbstractEventLoop

    @property
    def has_task(self) -> bool:
        """Whether work for the thread waits until no request runs, or for the end of a step."""
        return self._inbox.task is not None or self._task is not None

    def generate(self, request: GenerationRequest) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """The request's outputs. Closing the generator aborts the request."""
        self._engine.validate(request)
        self._loop = asyncio.get_running_loop()
        return self._streams.open(request.request_id, partial(self.submit, request))

    def _deliver_to_loop(self, outputs: list[EngineOutput]) -> None:
        if outputs:
            with suppress(RuntimeError):  # the test's loop is closed
                self._loop.call_soon_threadsafe(self._streams.deliver, outputs)
