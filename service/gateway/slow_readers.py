"""Streams whose clients read more slowly than the engine decodes. Every stream goes through a `Relay`.

Who sends a stream takes its items straight from the replica. While that one waits for its client, a task takes them
instead, at the replica's pace. So the place at the replica is free when the replica's answer ends, whoever reads.
What waits for clients is encoded as for a link, so that its size is known and bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextvars import Context, copy_context
from typing import Any, cast

from service.errors import SlowReader
from service.messagepack import MessagePack
from service.wire import Answering, Chunk, Ending, Progress, ReplicaRequest

#: seconds between two looks for streams that wait for their clients
LOOK_S = 0.5
#: bytes of items that wait for all clients of an ingress together
MOST_BYTES = 64 * 1024 * 1024
#: seconds after a request's time limit in which its client may read what was decoded
GRACE_S = 60.0

Item = Progress | Chunk | Ending
_CODEC = MessagePack(Item)


class SlowReaders:
    """The streams of one ingress. `waiting_bytes`: what waits for their clients."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.waiting_bytes, self._most = 0, most_bytes
        self._relays: set[Relay] = set()
        self._timer: asyncio.TimerHandle | None = None

    def relay(self, request: ReplicaRequest, items: Answering) -> Relay:
        """The stream of a request."""
        return Relay(self, request, items)

    def watch(self, relay: Relay) -> None:
        """Somebody reads a stream."""
        self._relays.add(relay)
        if self._timer is None:
            self._look_later()

    def forget(self, relay: Relay) -> None:
        """A stream is closed."""
        self._relays.discard(relay)

    def wait(self, size: int) -> None:
        """So many bytes more wait. Above the limit, the tenant with the most loses its longest backlog."""
        self.waiting_bytes += size
        while self.waiting_bytes > self._most:
            tenants = Counter[str]()
            for relay in self._relays:
                tenants[relay.tenant] += relay.size
            [(tenant, _)] = tenants.most_common(1)
            max((r for r in self._relays if r.tenant == tenant), key=lambda r: r.size).drop()

    def _look(self) -> None:
        for relay in self._relays:
            relay.look()
        self._timer = None
        if self._relays:
            self._look_later()

    def _look_later(self) -> None:
        # A context of its own: that of the first stream would keep its request.
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look, context=Context())


class Relay(AsyncGenerator[Item, None]):
    """The items of one answer. `tenant`: the tenant of its request. `size`: bytes that wait for its client.

    The stream of an answer that began must be closed, unless it was read to its end.
    """

    def __init__(self, readers: SlowReaders, request: ReplicaRequest, items: Answering) -> None:
        self._readers, self._request, self._items = readers, request, items
        self.tenant, self.size = request.tenant, 0
        self._context = copy_context()
        self._begun = self._reading = False
        self._taking: asyncio.Task[None] | None = None
        self._backlog: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._error: Exception | None = None

    async def asend(self, value: None) -> Item:  # noqa: ARG002 - the signature is Python's
        """The next item. Raises what ended the answer, or SlowReader."""
        if not self._begun:
            self._begun = True
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

    async def athrow(self, kind: Any, value: Any = None, traceback: Any = None) -> Item:  # noqa: ARG002
        """Ends the answer with an error."""
        await self.aclose()
        raise kind

    async def _next(self) -> Item | None:
        """The next item; None after the last."""
        if self._taking is None:
            self._reading = True
            try:
                return await anext(self._items, None)
            finally:
                self._reading = False
        while not self._backlog:
            if self._error is not None:
                raise self._error
            if self._taking.done():
                return None
            self._changed.clear()
            await self._changed.wait()
        if self._request.arrived.waited_s() > self._request.timeout_s + GRACE_S:
            self.drop()
            raise self._lost(f"was not read {GRACE_S:g} s after its timeout_s")
        item = self._backlog.popleft()
        self._resize(-len(item))
        [taken] = _CODEC.decode(_CODEC.content([item]))
        return cast(Item, taken)

    def look(self) -> None:
        """Begins to take the items of a stream that waits for its client."""
        if self._taking is None and not self._reading:
            self._taking = asyncio.get_running_loop().create_task(self._take(), context=self._context)

    def drop(self) -> None:
        """Gives up the backlog, and the answer if it is still decoded."""
        if self._taking is not None:
            self._taking.cancel()
        self._error = self._lost("was read too slowly, and too much waited for clients")
        self._backlog.clear()
        self._resize(-self.size)
        self._changed.set()

    async def aclose(self) -> None:
        """Ends the answer, unless it has ended."""
        self._backlog.clear()
        self._resize(-self.size)
        self._readers.forget(self)
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)
        await self._items.aclose()

    async def _take(self) -> None:
        try:
            async for item in self._items:
                if self._error is not None:  # dropped
                    return
                data = _CODEC.encode(item)
                self._backlog.append(data)
                self._resize(len(data))
                self._changed.set()
        except Exception as error:  # noqa: BLE001 - who reads gets it after the items before it
            self._error = error
        finally:
            await self._items.aclose()
            self._changed.set()

    def _resize(self, size: int) -> None:
        self.size += size
        self._readers.wait(size)

    def _lost(self, why: str) -> SlowReader:
        return SlowReader(f"the stream {why}")
