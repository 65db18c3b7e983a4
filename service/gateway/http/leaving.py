"""Ends a request whose client has left before its answer began. For servers that tell, but do not cancel.

After the answer has begun, the response itself listens (`streams.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LEFT = "http.disconnect"


class EndWhenLeft:
    """Cancels the application's task if the client leaves between the request's last byte and the answer's first."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        watch = _Watch(receive, send)
        try:
            await self._app(scope, watch.receive, watch.send)
        except asyncio.CancelledError:
            if not watch.has_cancelled():
                raise
        finally:
            watch.close()


class _Watch:
    """The two channels of one request. `_next`: the message after the body, which comes when the client leaves."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._task = asyncio.current_task()
        self._next: asyncio.Task[Message] | None = None
        self._begun = self._cancelled = False

    async def receive(self) -> Message:
        """As the server's, and begins to watch after the last part of the body."""
        if self._next is not None:
            return await asyncio.shield(self._next)
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            self._next = asyncio.create_task(self._after_body())
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """As the server's."""
        self._begun = True
        return self._send(message)

    def has_cancelled(self) -> bool:
        """Whether this watch, and nobody else, has cancelled the task. The task then goes on."""
        return self._cancelled and self._task is not None and self._task.uncancel() == 0

    def close(self) -> None:
        """Ends the watch."""
        if self._next is not None:
            self._next.cancel()

    async def _after_body(self) -> Message:
        message = await self._receive()
        if message["type"] == _LEFT and not self._begun and self._task is not None:
            self._cancelled = self._task.cancel()
        return message
