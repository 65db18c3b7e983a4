"""The ingress's end of a link to one replica."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

from service.errors import ReplicaLost
from service.frames import LONGEST, Frames, Malformed, Unsendable
from service.link.messages import AT_INGRESS, Call, Cancel, End, Item, Leaving, Method, Refused
from service.link.proof import NONCE, PROOF, is_proof, make_nonce, make_proof
from service.silence import HUNG_S, LOOK_S, Silence
from service.wire import Address, Work

#: seconds after which a client may try again
_RETRY_S = 1.0
#: the most values of a client's JSON within each other, far from what ends a decoder
_DEPTH = 100


class Elsewhere(Exception):
    """The replica is leaving and has not begun this call. Another one may take it."""


class Impostor(Exception):
    """Whoever listens where a replica should does not know its secret."""


class Link(Frames):
    """A connection to a replica. `open` makes it.

    `gone` is called once, when the replica takes no further calls (`usable`); it may still finish those it has, until
    the connection is `lost`. `told` gets the number of requests that the replica has from other ingresses.
    """

    def __init__(self, secret: str, gone: Callable[[], None], told: Callable[[int], None]) -> None:
        super().__init__(AT_INGRESS, longest=NONCE + PROOF)
        self._secret, self._nonce = secret, make_nonce()
        self._trusted = False
        self._proven: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone, self._told = gone, told
        self._numbers = count()
        self._calls: dict[int, Asked] = {}
        self._silence = Silence()
        self._watching: asyncio.Task[None] | None = None
        self.usable = True
        self.lost = False

    @classmethod
    async def open(cls, address: Address, gone: Callable[[], None], told: Callable[[int], None]) -> Link:
        """Connects. OSError if nobody listens or answers there; Impostor if it is not the replica."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: cls(address.secret, gone, told), address.host, address.port)
        await link.prove()
        return link

    async def prove(self) -> None:
        """Exchanges proofs with the replica. Raises what `open` raises."""
        self.write(self._nonce)
        try:
            await self._proven
        except BaseException:
            self.cut()
            raise
        self._watching = asyncio.create_task(self._watch())

    def ask(self, method: Method, work: Work, ended: Callable[[], None]) -> Asked:
        """Begins a call. `Asked.end` must follow, which calls `ended`. Unsendable if a link cannot carry the work."""
        if _is_deep([work.messages, work.tools]):
            raise Unsendable(f"a work has more than {_DEPTH} values within each other")
        asked = Asked(self, next(self._numbers), ended)
        self.send(Call(asked.number, method, work))
        self._calls[asked.number] = asked
        return asked

    def forget(self, number: int) -> None:
        """The caller needs no more of a call. The replica is told, unless the call is over."""
        if self._calls.pop(number, None) is not None:
            self.send(Cancel(number))

    def received(self, content: bytes) -> None:
        """Checks the replica's proof, then gives items to their calls."""
        if not self._trusted:
            self._check(content)
            return
        self._silence.heard()
        for message in self.codec.decode(content):
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

    def refuse(self, why: str) -> None:
        """Ends the connection at once."""
        if self._trusted:
            super().refuse(why)
            return
        if not self._proven.done():
            self._proven.set_exception(Impostor(why))
        self.cut()

    def connection_lost(self, error: Exception | None) -> None:
        """Ends all calls with ReplicaLost."""
        if not self._proven.done():
            self._proven.set_exception(error or ConnectionError("it ended before it was proven"))
        self.lost = True
        if self._watching is not None:
            self._watching.cancel()
        self._leave()
        calls, self._calls = self._calls, {}
        for asked in calls.values():
            asked.put(ReplicaLost("the replica was lost before the answer was complete", retry_after=_RETRY_S))

    async def _watch(self) -> None:
        """Gives up a replica that hangs: its calls go on elsewhere."""
        while self._silence.look() <= HUNG_S:
            await asyncio.sleep(LOOK_S)
        self.cut()

    def _check(self, content: bytes) -> None:
        nonce, given = content[:NONCE], content[NONCE:]
        if not is_proof(given, make_proof(self._secret, "replica", self._nonce, nonce)):
            raise Malformed("it does not know the replica's secret")
        if self._proven.cancelled():
            return
        self.write(make_proof(self._secret, "ingress", self._nonce, nonce))
        self._trusted, self.longest = True, LONGEST
        self._proven.set_result(None)

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


def _is_deep(value: object) -> bool:
    """Whether values are nested too deeply. Goes down level by level, so that no depth is too deep for it."""
    level: list[object] = [value]
    for _ in range(_DEPTH):
        level = [inner for outer in level for inner in _within(outer)]
        if not level:
            return False
    return True


def _within(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()
