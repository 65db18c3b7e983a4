"""Draining of one ingress: it refuses new requests and finishes the requests in progress, or aborts them.

GET /health reports the draining, so a load balancer sends new requests elsewhere while running ones go on.
`cli/draining.py` stops the service and calls every ingress by its handle.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import NotReady
from service.gateway.http.errors import CountError, problem

_RETRY_S = 5.0


class Draining:
    """The number of requests in progress at one ingress, and whether the ingress still takes new ones."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._draining = self._aborted = False
        self._blocks: set[_Abortable] = set()

    def begin(self) -> int:
        """Refuses new requests from now on. Returns the number of requests in progress."""
        self._draining = True
        return self.in_flight

    def abort(self) -> None:
        """Ends the requests in progress with NotReady."""
        if not self._aborted:
            self._draining = self._aborted = True
            for block in self._blocks:
                block.end()

    def check(self) -> None:
        """Raises NotReady while draining."""
        if self._draining:
            raise NotReady("draining: this server is about to stop and takes no new requests", retry_after=_RETRY_S)

    def abortable(self) -> AbstractContextManager[None]:
        """Runs the block. Ends it with NotReady when `abort` is called, or has been."""
        if self._aborted:
            raise _abort_error()
        return _Abortable(self._blocks)


class _Abortable(AbstractContextManager[None]):
    """Ends its block as `asyncio.timeout` does, by a cancellation of the task that stays within the block.

    Every block of every stream enters one. `asyncio.timeout` makes four coroutines each time.
    """

    __slots__ = ("_blocks", "_cancelling", "_ended", "_task")
    _task: asyncio.Task[Any]

    def __init__(self, blocks: set[_Abortable]) -> None:
        self._blocks, self._ended = blocks, False

    def __enter__(self) -> None:
        if (task := asyncio.current_task()) is None:
            raise RuntimeError("only a task can be ended")
        self._task, self._cancelling = task, task.cancelling()
        self._blocks.add(self)

    def end(self) -> None:
        """Called once, while the block runs."""
        self._ended = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self._blocks.discard(self)
        if not self._ended or self._task.uncancel() > self._cancelling:
            return
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            raise _abort_error() from None


def _abort_error() -> NotReady:
    return NotReady("cut: this server stopped before the answer was complete", retry_after=_RETRY_S)


class DrainGate:
    """Counts POST requests from their first byte to the last byte of the answer. Refuses them while draining."""

    def __init__(self, app: ASGIApp, draining: Draining, count: CountError) -> None:
        self._app = app
        self._draining = draining
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        try:
            self._draining.check()
        except NotReady as error:
            self._count(error)
            return await problem(error, scope["request_id"])(scope, receive, send)
        self._draining.in_flight += 1
        try:
            return await self._app(scope, receive, send)
        finally:
            self._draining.in_flight -= 1
