"""The bodies that still come to one ingress. Where they are too many, the slowest ones end.

`guarded.py` bounds the time of one body, for connections of any key. Here each key has a share of an ingress, and
their bytes together are bounded. Bodies that have come whole do not count: the queue bounds those.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Any, Final

from starlette.types import Message, Receive

from service.errors import MrpServeError, SlowBody

#: unfinished bodies of one API key, and the bytes of all unfinished bodies of an ingress
MOST_OF_A_KEY: Final = 64
MOST_BYTES: Final = 64 * 1024 * 1024
#: bytes a second with which a body earns time
BYTES_PER_S: Final = 16 * 1024


class Interruptible(AbstractContextManager[None]):
    """A block of code that another task may end with an error of its choice.

    As `asyncio.timeout`, it cancels the task, and the cancellation stays within the block. It is in `running` while its
    block runs. Every block of every stream enters one; `asyncio.timeout` makes four coroutines each time.
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


class Bodies:
    """The unfinished bodies of one ingress. `most_bytes`: the limit of their bytes together, `size`."""

    def __init__(self, most_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self.size, self._most = 0, most_bytes
        self._clock = clock
        self._of_tenants: dict[str, set[ComingBody]] = {}

    def __len__(self) -> int:
        return sum(len(bodies) for bodies in self._of_tenants.values())

    @contextmanager
    def coming(self, tenant: str, receive: Receive) -> Iterator[Receive]:
        """The messages of a tenant's body. They raise SlowBody once the body has to make room for others."""
        body = ComingBody(self, tenant, receive, self._clock())
        self._of_tenants.setdefault(tenant, set()).add(body)
        try:
            if len(self._of_tenants[tenant]) > MOST_OF_A_KEY:
                self._end_slowest(tenant, f"{MOST_OF_A_KEY} others are not complete either")
            yield body.receive
        finally:
            self.forget(body)

    def add(self, body: ComingBody, size: int) -> None:
        """A part of a body has come. Above the limit of bytes, the tenant with the most loses its slowest body."""
        body.size += size
        self.size += size
        if self.size > self._most:
            most = max(self._of_tenants, key=lambda tenant: sum(body.size for body in self._of_tenants[tenant]))
            self._end_slowest(most, f"those that are not complete have {self._most} bytes")

    def end_all(self, error: MrpServeError) -> None:
        """Ends every body with its own copy of `error`."""
        for bodies in self._of_tenants.values():
            for body in bodies:
                body.end(copy(error))

    def forget(self, body: ComingBody) -> None:
        if body in (bodies := self._of_tenants.get(body.tenant, set())):
            bodies.remove(body)
            self.size -= body.size
            if not bodies:
                del self._of_tenants[body.tenant]

    def _end_slowest(self, tenant: str, why: str) -> None:
        body = min(self._of_tenants[tenant], key=ComingBody.due)
        self.forget(body)
        body.end(SlowBody(f"the body came too slowly, and {why}"))


class ComingBody:
    """One unfinished body. `since`: when it began. `size`: its bytes so far."""

    def __init__(self, bodies: Bodies, tenant: str, receive: Receive, since: float) -> None:
        self.tenant, self.size = tenant, 0
        self._bodies, self._receive, self._since = bodies, receive, since
        self._waiting: set[Interruptible] = set()
        self._error: MrpServeError | None = None

    def due(self) -> float:
        """The moment of its begin, later by the time that its bytes have earned."""
        return self._since + self.size / BYTES_PER_S

    async def receive(self) -> Message:
        """The next message. The error of `end` if the body had to end."""
        if self._error is None:
            with Interruptible(self._waiting):
                message = await self._receive()
            if message.get("more_body", False):
                self._bodies.add(self, len(message.get("body", b"")))
            else:
                self._bodies.forget(self)
        if self._error is not None:
            raise self._error
        return message

    def end(self, error: MrpServeError) -> None:
        self._error = error
        for block in self._waiting:
            block.end(error)
