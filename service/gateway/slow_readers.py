"""Streams whose clients read more slowly than the engine decodes. Every stream goes through a `Relay`.

While the sender waits for its client, a task takes the items at the replica's pace, so the slot is free when the
replica's answer ends. Waiting items are encoded as for a link, so that their size is known and bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextvars import Context, copy_context
from typing import Any, cast

from service.errors import SlowReader
from service.ipc.messagepack import MessagePack
from service.messages.wire import Answering, Chunk, Ending, Progress, ReplicaRequest

#: seconds between two polls for streams that wait for their clients
POLL_S = 0.5
#: bytes of items that wait for all clients of an ingress together
MOST_BYTES = 64 * 1024 * 1024
#: seconds after a request's time limit in which its client may read the rest
GRACE_S = 60.0

AnswerItem = Progress | Chunk | Ending
_CODEC = MessagePack(AnswerItem)


class SlowReaders:
    """The streams of one ingress. `waiting_bytes`: the size of all items that wait for their clients."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.waiting_bytes, self._most = 0, most_bytes
        self._relays: set[Relay] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, relay: Relay) -> None:
        self._relays.add(relay)
        if self._timer is None:
            self._poll_later()

    def forget(self, relay: Relay) -> None:
        self._relays.discard(relay)

    def add_waiting(self, size: int) -> None:
        """Adds to the waiting bytes. Above the limit, the tenant with the most loses its longest backlog."""
        self.waiting_bytes += size
        while self.waiting_bytes > self._most:
            tenants = Counter[str]()
            for relay in self._relays:
                tenants[relay.tenant] += relay.size
            [(tenant, _)] = tenants.most_common(1)
            max((r for r in self._relays if r.tenant == tenant), key=lambda r: r.size).drop()

    def _poll(self) -> None:
        for relay in self._relays:
            relay.poll()
        self._timer = None
        if self._relays:
            self._poll_later()

    def _poll_later(self) -> None:
        # A context of its own: the context of the first stream would keep its request.
        self._timer = asyncio.get_running_loop().call_later(POLL_S, self._poll, context=Context())


class Relay(AsyncGenerator[AnswerItem, None]):
    """The items of one answer. `tenant`: the tenant of its request. `size`: bytes that wait for its client.

    The stream of an answer that began must be closed, unless it was read to its end.
    """

    def __init__(self, readers: SlowReaders, request: ReplicaRequest, items: Answering) -> None:
        self._readers, self._request, self._items = readers, request, items
        self.tenant, self.size = request.sharing.tenant, 0
        self._context = copy_context()
        self._watched = self._reading = False
        self._relaying: asyncio.Task[None] | None = None
        self._backlog: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._error: Exception | None = None

    async def asend(self, value: None) -> AnswerItem:  # noqa: ARG002 - the signature is Python's
        """The next item. Raises the error that ended the answer, or SlowReader."""
        if not self._watched:
            self._watched = True
            self._readers.watch(self)
        try:
            item = await self._next()
        except BaseException:
            await self.aclose()
            raise
        if item is None:
            await self.aclose()
            raise StopAsyncIteration
        return item

    async def athrow(self, kind: Any, value: Any = None, traceback: Any = None) -> AnswerItem:  # noqa: ARG002
        await self.aclose()
        raise kind

    async def _next(self) -> AnswerItem | None:
        if self._relaying is None:
            self._reading = True
            try:
                return await anext(self._items, None)
            finally:
                self._reading = False
        while not self._backlog:
            if self._error is not None:
                raise self._error
            if self._relaying.done():
                return None
            self._changed.clear()
            await self._changed.wait()
        if self._request.arrived.waited_s() > self._request.timeout_s + GRACE_S:
            self.drop()
            raise SlowReader(f"the stream was not read {GRACE_S:g} s after its timeout_s")
        item = self._backlog.popleft()
        self._resize(-len(item))
        [decoded] = _CODEC.decode(_CODEC.content([item]))
        return cast(AnswerItem, decoded)

    def poll(self) -> None:
        """Begins to take the items of a stream that waits for its client."""
        if self._relaying is None and not self._reading:
            self._relaying = asyncio.get_running_loop().create_task(self._relay(), context=self._context)

    def drop(self) -> None:
        """Gives up the backlog, and the answer if it is still being decoded."""
        if self._relaying is not None:
            self._relaying.cancel()
        self._error = SlowReader("the stream was read too slowly, and too much waited for clients")
        self._backlog.clear()
        self._resize(-self.size)
        self._changed.set()

    async def aclose(self) -> None:
        self._backlog.clear()
        self._resize(-self.size)
        self._readers.forget(self)
        if self._relaying is not None:
            self._relaying.cancel()
            await asyncio.gather(self._relaying, return_exceptions=True)
        await self._items.aclose()

    async def _relay(self) -> None:
        try:
            async for item in self._items:
                if self._error is not None:  # dropped
                    return
                data = _CODEC.encode(item)
                self._backlog.append(data)
                self._resize(len(data))
                self._changed.set()
        except Exception as error:  # noqa: BLE001 - the reader gets it after the items before it
            self._error = error
        finally:
            await self._items.aclose()
            self._changed.set()

    def _resize(self, size: int) -> None:
        self.size += size
        self._readers.add_waiting(size)
