"""Blocks of code that another task may end, with an error of its choice."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from service.errors import MrpServeError


class Interruptible(AbstractContextManager[None]):
    """Ends its block as `asyncio.timeout` does, by a cancellation of the task that stays within the block.

    It is in `running` while its block runs. Every block of every stream enters one; `asyncio.timeout` makes four
    coroutines each time.
    """

    __slots__ = ("_cancelling", "_error", "_running", "_task")
    _task: asyncio.Task[Any]

    def __init__(self, running: set[Interruptible]) -> None:
        self._running = running
        self._error: MrpServeError | None = None

    def __enter__(self) -> None:
        if (task := asyncio.current_task()) is None:
            raise RuntimeError("only a task can be ended")
        self._task, self._cancelling = task, task.cancelling()
        self._running.add(self)

    def end(self, error: MrpServeError) -> None:
        """Ends the block, which raises `error`. Called while the block runs; the first error counts."""
        if self._error is None:
            self._error = error
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self._running.discard(self)
        if self._error is None or self._task.uncancel() > self._cancelling:
            return
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._error from None
