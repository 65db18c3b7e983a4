"""An engine on a thread of this process, with an asyncio stream of block events for every request.

A request with `report_steps` also gets the steps of each block after the engine's step that took them. If a stream is
closed early (the client left), its request is aborted before the next step.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable

from service.engine.engine import Engine
from service.engine.request import BlockEvent, BlockProgress, GenerationRequest
from service.engine.streams import Streams
from service.engine.thread import EngineThread


class EngineWorker(EngineThread):
    """An `EngineThread` for event loops of the same process."""

    def __init__(
        self,
        engine: Engine,
        max_waiting: int = 256,
        stall_timeout_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._streams = Streams(self.submit, self.abort)
        super().__init__(engine, self._streams.deliver, max_waiting, stall_timeout_s, clock)

    def generate(self, request: GenerationRequest) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """The request's block events, and its steps if it asks for them. The last item has a finish reason.

        Closing the generator aborts the request. Raises InvalidRequest and its subclasses; what `submit` raises;
        ReplicaStopping if the engine stops; EngineFailed; OutOfMemory if the device had no memory for this request.
        """
        self._engine.validate(request)
        return self._streams.follow(request)
