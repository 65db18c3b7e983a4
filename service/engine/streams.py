"""The outputs of requests as asyncio streams of one event loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable

from service.engine.request import BlockEvent, BlockProgress, RequestFailed
from service.errors import MrpServeError

EngineOutput = BlockEvent | BlockProgress | RequestFailed


def ends(output: EngineOutput) -> bool:
    """Whether an output is the last one of its request."""
    return isinstance(output, RequestFailed) or (isinstance(output, BlockEvent) and output.finish_reason is not None)


class RequestStreams:
    """The streams of all requests of an engine. `abort`: ends a request of the engine."""

    def __init__(self, abort: Callable[[str], None]) -> None:
        self._abort = abort
        self._queues: dict[str, asyncio.Queue[EngineOutput]] = {}

    async def open(self, request_id: str, submit: Callable[[], None]) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """Submits a request, and yields its outputs to the last one. Closing the generator aborts the request.

        `submit`: passes the request to the engine. Raises its errors, and the error that ended the request.
        """
        submit()
        queue = self._queues[request_id] = asyncio.Queue[EngineOutput]()
        finished = False
        try:
            while not finished:
                output = await queue.get()
                finished = ends(output)
                if isinstance(output, RequestFailed):
                    raise output.error
                yield output
        finally:
            # a stream whose last output is on its way has no queue any more, and its request is not aborted
            if not finished and self._queues.pop(request_id, None) is not None:
                self._abort(request_id)

    def deliver(self, outputs: Iterable[EngineOutput]) -> None:
        """Passes outputs to their streams, on their event loop. The last output of a request ends its stream."""
        for output in outputs:
            find = self._queues.pop if ends(output) else self._queues.get
            if (queue := find(output.request_id, None)) is not None:
                queue.put_nowait(output)

    def fail(self, error: Callable[[], MrpServeError]) -> None:
        """Ends all streams, each with another error object: raising an error extends its traceback."""
        self.deliver([RequestFailed(request_id, error()) for request_id in self._queues])
