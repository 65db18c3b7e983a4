"""The ingress's end of a link to one replica."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from service.errors import ReplicaLost
from service.frames import Frames, messages_of
from service.link.messages import Call, Cancel, End, Item, Leaving, Method, Refused
from service.silence import HUNG_S, LOOK_S, Silence
from service.wire import Address, Work

#: seconds after which a client may try again
_RETRY_S = 1.0


class Elsewhere(Exception):
    """The replica is leaving and has not begun this call. Another one may take it."""


class Link(Frames):
    """A connection to a replica. `open` makes it.

    `gone` is called once, when the replica takes no further calls (`usable`); it may still finish those it has, until
    the connection is `lost`. `told` gets the number of requests that the replica has from other ingresses.
    """

    def __init__(self, gone: Callable[[], None], told: Callable[[int], None]) -> None:
        super().__init__()
        self._gone, self._told = gone, told
        self._numbers = count()
        self._calls: dict[int, Asked] = {}
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._silence = Silence()
        self._watching: asyncio.Task[None] | None = None
        self.usable = True
        self.lost = False

    @classmethod
    async def open(cls, address: Address, gone: Callable[[], None], told: Callable[[int], None]) -> Link:
        """Connects, and waits for the replica's first word. OSError if nobody listens there."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: cls(gone, told), address.host, address.port)
        link.write(address.secret.encode())
        await link.greeted()
        return link

    async def greeted(self) -> None:
        """Waits for the replica's first word. From then on its silence counts."""
        try:
            await self._greeted
        except BaseException:
            self._transport.abort()
            raise
        self._watching = asyncio.create_task(self._watch())

    def ask(self, method: Method, work: Work, ended: Callable[[], None]) -> Asked:
        """Begins a call. `Asked.end` must follow, which calls `ended`."""
        asked = Asked(self, next(self._numbers), ended)
        self._calls[asked.number] = asked
        self.send(Call(asked.number, method, work))
        return asked

    def forget(self, number: int) -> None:
        """The caller needs no more of a call. The replica is told, unless the call is over."""
        if self._calls.pop(number, None) is not None:
            self.send(Cancel(number))

    def received(self, content: bytes) -> None:
        """Gives items to their calls."""
        self._silence.heard()
        if not self._greeted.done():
            self._greeted.set_result(None)
        for message in messages_of(content):
            match message:
                case Item(number, item, others):
                    self._told(others)
                    if asked := self._calls.get(number):
                        asked.put(item)
                case End(number):
                    if asked := self._calls.pop(number, None):
                        asked.put(None)
                case Refused(number):
                    if asked := self._calls.pop(number, None):
                        asked.put(Elsewhere())
                case Leaving():
                    self._leave()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """Ends all calls with ReplicaLost."""
        self.lost = True
        if self._watching is not None:
            self._watching.cancel()
        if not self._greeted.done():
            self._greeted.set_exception(ConnectionError("the replica closed the link"))
        self._leave()
        calls, self._calls = self._calls, {}
        for asked in calls.values():
            asked.put(ReplicaLost("the replica was lost before the answer was complete", retry_after=_RETRY_S))

    async def _watch(self) -> None:
        """Gives up a replica that hangs: its calls go on elsewhere."""
        while self._silence.look() <= HUNG_S:
            await asyncio.sleep(LOOK_S)
        self._transport.abort()

    def _leave(self) -> None:
        if self.usable:
            self.usable = False
            self._gone()


class Asked:
    """A call in progress: its items, one after the other."""

    __slots__ = ("_ended", "_items", "_link", "_waiter", "number")

    def __init__(self, link: Link, number: int, ended: Callable[[], None]) -> None:
        self._link, self.number, self._ended = link, number, ended
        self._items: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> Any:
        """The next item, None after the last. Elsewhere or ReplicaLost if the replica does not answer."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        item = self._items.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    def put(self, item: object) -> None:
        """Stores an item, or the error that ends the call, and wakes who waits."""
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        """Needs no further items. Called once."""
        self._link.forget(self.number)
        self._ended()
