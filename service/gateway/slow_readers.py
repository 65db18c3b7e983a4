"""Streams whose clients read more slowly than the engine decodes. Every stream goes through a `Relay`.

While the sender waits for its client, a task takes the items at the replica's pace, so the slot is free when the
replica's answer ends. Waiting items are encoded as for a link, so that their size is known and bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextvars import Context, copy_context
from typing import cast

from service.errors import SlowReader
from service.ipc.messagepack import MessagePack
from service.messages.wire import AnswerStream, Chunk, Ending, Progress, ReplicaRequest

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


class Relay:
    """The items of one answer. `tenant`: the tenant of its request. `size`: bytes that wait for its client."""

    def __init__(self, readers: SlowReaders, request: ReplicaRequest, items: AnswerStream) -> None:
        self._readers, self._request, self._items = readers, request, items
        self.tenant, self.size = request.sharing.tenant, 0
        self._context = copy_context()
        self._reading = self._dropped = False
        self._relaying: asyncio.Task[None] | None = None
        self._backlog: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    async def items(self) -> AnswerStream:
        """The items. Raises the error that ended the answer, or SlowReader."""
        self._readers.watch(self)
        try:
            while (item := await self._next()) is not None:
                yield item
        finally:
            self._clear()
            self._readers.forget(self)
            if self._relaying is not None:
                self._relaying.cancel()
                await asyncio.gather(self._relaying, return_exceptions=True)
            await self._items.aclose()

    async def _next(self) -> AnswerItem | None:
        if self._relaying is None:
            self._reading = True
            try:
                return await anext(self._items, None)
            finally:
                self._reading = False
        item = await self._backlog.get()
        if not isinstance(item, bytes):
            if item is not None:
                raise item
            return None
        if self._request.arrived.waited_s() > self._request.timeout_s + GRACE_S:
            raise SlowReader(f"the stream was not read {GRACE_S:g} s after its timeout_s")
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
        self._dropped = True
        self._clear()
        self._backlog.put_nowait(SlowReader("the stream was read too slowly, and too much waited for clients"))

    async def _relay(self) -> None:
        try:
            async for item in self._items:
                if self._dropped:
                    return
                data = _CODEC.encode(item)
                self._backlog.put_nowait(data)
                self._resize(len(data))
            self._backlog.put_nowait(None)
        except Exception as error:  # noqa: BLE001 - the reader gets it after the items before it
            self._backlog.put_nowait(error)
        finally:
            await self._items.aclose()

    def _clear(self) -> None:
        while not self._backlog.empty():
            self._backlog.get_nowait()
        self._resize(-self.size)

    def _resize(self, size: int) -> None:
        self.size += size
        self._readers.add_waiting(size)
