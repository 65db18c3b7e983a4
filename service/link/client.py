"""The ingress's end of a link to one replica."""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from service.errors import ReplicaLost
from service.ipc.connections import HEARTBEAT_TIMEOUT_S, LONGEST, POLL_S, Frames, HeartbeatMonitor
from service.ipc.messagepack import Malformed
from service.link import protocol
from service.messages.replica_status import Address
from service.messages.wire import ReplicaRequest

#: seconds after which a client may try again
_RETRY_S = 1.0


class ReplicaDraining(Exception):
    """The replica drains and has not begun this call. Another replica may answer it."""


class AuthenticationFailed(Exception):
    """Another program listens at a replica's address: it does not know the replica's secret."""


class Link(Frames):
    """A connection to a replica. `open` makes it.

    `on_close` is called once, when the replica takes no further calls (`usable`); running calls may still finish.
    `on_load` gets the number of the replica's requests of other ingresses.
    """

    def __init__(self, secret: str, on_close: Callable[[], None], on_load: Callable[[int], None]) -> None:
        super().__init__(protocol.AT_INGRESS, longest=protocol.NONCE + protocol.PROOF)
        self._secret, self._nonce = secret, protocol.make_nonce()
        self._trusted = False
        self._proven: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_close, self._on_load = on_close, on_load
        self._numbers = count()
        self._calls: dict[int, PendingCall] = {}
        self._heartbeats = HeartbeatMonitor()
        self._watching: asyncio.Task[None] | None = None
        self.usable = True
        self.lost = False

    @classmethod
    async def open(
        cls,
        address: Address,
        on_close: Callable[[], None],
        on_load: Callable[[int], None],
        tls: ssl.SSLContext | None = None,
    ) -> Link:
        """Connects. `tls`: encrypts the link. OSError if no program answers; AuthenticationFailed."""
        loop = asyncio.get_running_loop()
        make = partial(cls, address.secret, on_close, on_load)
        _, link = await loop.create_connection(make, address.host, address.port, ssl=tls)
        await link.prove()
        return link

    async def prove(self) -> None:
        self.write(self._nonce)
        try:
            await self._proven
        except BaseException:
            self.abort()
            raise
        self._watching = asyncio.create_task(self._watch())

    def call(self, method: protocol.Method, request: ReplicaRequest, on_end: Callable[[], None]) -> PendingCall:
        """Begins a call. `PendingCall.end` must follow, which calls `on_end`. Unsendable if it has no encoding."""
        call = PendingCall(self, next(self._numbers), on_end)
        self.send(protocol.ReplicaCall.of(call.number, method, request))
        self._calls[call.number] = call
        return call

    def forget(self, number: int) -> None:
        if self._calls.pop(number, None) is not None:
            self.send(protocol.CancelCall(number))

    def received(self, content: bytes) -> None:
        if not self._trusted:
            self._check(content)
            return
        self._heartbeats.observe()
        for message in self.codec.decode(content):
            match message:
                case protocol.ReplicaItem(number, item, other_requests):
                    self._on_load(other_requests)
                    if call := self._calls.get(number):
                        call.push(item)
                case protocol.CallEnd(number, refused):
                    if call := self._calls.pop(number, None):
                        call.push(ReplicaDraining() if refused else None)
                case protocol.DrainNotice():
                    self._close()

    def refuse(self, why: str) -> None:
        if self._trusted:
            super().refuse(why)
            return
        if not self._proven.done():
            self._proven.set_exception(AuthenticationFailed(why))
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._proven.done():
            self._proven.set_exception(error or ConnectionError("it ended before it was proven"))
        self.lost = True
        if self._watching is not None:
            self._watching.cancel()
        self._close()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.push(ReplicaLost("the replica was lost before the answer was complete", retry_after=_RETRY_S))

    async def _watch(self) -> None:
        while self._heartbeats.poll() <= HEARTBEAT_TIMEOUT_S:
            await asyncio.sleep(POLL_S)
        self.abort()

    def _check(self, content: bytes) -> None:
        nonce, proof = content[: protocol.NONCE], content[protocol.NONCE :]
        if not hmac.compare_digest(proof, protocol.make_proof(self._secret, "replica", self._nonce, nonce)):
            raise Malformed("it does not know the replica's secret")
        if self._proven.cancelled():
            return
        self.write(protocol.make_proof(self._secret, "ingress", self._nonce, nonce))
        self._trusted, self.longest = True, LONGEST
        self._proven.set_result(None)

    def _close(self) -> None:
        if self.usable:
            self.usable = False
            self._on_close()


class PendingCall:
    """A call in progress: its items, one after the other."""

    __slots__ = ("_items", "_link", "_on_end", "number")

    def __init__(self, link: Link, number: int, on_end: Callable[[], None]) -> None:
        self._link, self.number, self._on_end = link, number, on_end
        self._items: asyncio.Queue[Any] = asyncio.Queue()

    async def next(self) -> Any:
        """The next item, None after the last. ReplicaDraining or ReplicaLost if the replica does not answer."""
        item = await self._items.get()
        if isinstance(item, Exception):
            raise item
        return item

    def push(self, item: object) -> None:
        self._items.put_nowait(item)

    def end(self) -> None:
        self._link.forget(self.number)
        self._on_end()
