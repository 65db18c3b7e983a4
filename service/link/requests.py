"""Requests over links, one link to each replica. Where there are none, requests go another way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol, cast

from service.frames import Unsendable
from service.link.client import Asked, Elsewhere, Impostor, Link
from service.link.messages import Method
from service.link.server import Replica
from service.routing.router import Router
from service.wire import Address, Failure, Items, Status, Work, patience_s, too_late

_log = logging.getLogger(__name__)

#: seconds to connect and to see the replica's proof, and seconds until the next try
_OPEN_S = 2.0
_AGAIN_S = 10.0


class Requests(Replica, Protocol):
    """A way to the replicas: answers as one of them does. Every method may raise an MrpServeError."""

    async def learn(self, statuses: Sequence[Status]) -> None:
        """Hears of the replicas that have answered just now. An older address may be another program's."""


class LinkedRequests:
    """Sends each request over the link of the replica that `router` chooses.

    `otherwise` reaches every replica. All requests go by it while a replica cannot be reached by a link, and while
    there is no replica. `linked` gets the number of replicas that are chosen from.
    """

    def __init__(
        self,
        router: Router,
        otherwise: Requests,
        linked: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._otherwise = otherwise
        self._linked = linked
        self._clock = clock
        self._links: dict[str, Link] = {}
        self._not_before: dict[str, float] = {}
        self._impostors: set[Address] = set()
        self._learning = asyncio.Lock()

    async def count(self, work: Work) -> int | Failure:
        """The number of tokens of a work's prompt."""
        if (begun := await self._begin("count", work)) is None:
            return await self._otherwise.count(work)
        asked, tokens = begun
        asked.end()
        return cast(int | Failure, tokens)

    async def stream(self, work: Work) -> Items:
        """The answer block by block."""
        if (begun := await self._begin("stream", work)) is None:
            async with aclosing(self._otherwise.stream(work)) as items:
                async for item in items:
                    yield item
            return
        asked, item = begun
        try:
            while item is not None:
                yield item
                item = await asked.next()
        finally:
            asked.end()

    async def _begin(self, method: Method, work: Work) -> tuple[Asked, Any] | None:
        """The call and its first item. None if no replica is linked, or the work cannot be sent by a link."""
        while (name := self._router.choose(work)) is not None:
            ended = partial(self._router.ended, name)
            try:
                asked = self._links[name].ask(method, work, ended)
            except Unsendable:  # such as an integer beyond 64 bits in a tool's schema
                ended()
                return None
            try:
                async with asyncio.timeout(patience_s(work)):
                    return asked, await asked.next()
            except Elsewhere:
                asked.end()
            except TimeoutError:
                asked.end()
                raise too_late(work) from None
            except BaseException:
                asked.end()
                raise
        return None

    # --- the replicas ------------------------------------------------------------------------------

    async def learn(self, statuses: Sequence[Status]) -> None:
        """Links every replica that can generate. Unless all are linked, requests go another way."""
        async with self._learning:
            wanted = {status.replica: status.address for status in statuses if status.failure is None}
            self._links = {name: link for name, link in self._links.items() if not link.lost}
            self._impostors.intersection_update(wanted.values())
            await asyncio.gather(*(self._open(name, wanted[name]) for name in wanted.keys() - self._links.keys()))
            linked = [name for name in wanted if name in self._links and self._links[name].usable]
            if not wanted.keys() <= self._links.keys():
                linked = []
            self._router.set_replicas(linked)
            self._linked(len(linked))

    async def _open(self, name: str, address: Address | None) -> None:
        if address is None or address in self._impostors or self._clock() < self._not_before.get(name, 0.0):
            return
        where = f"{address.host} port {address.port}"
        try:
            async with asyncio.timeout(_OPEN_S):
                told = partial(self._router.others, name)
                self._links[name] = await Link.open(address, partial(self._router.remove, name), told)
        except Impostor as error:
            self._impostors.add(address)
            _log.error("%s is not %s: %s. Nothing was sent there; it is not used again", where, name, error)
        except (OSError, TimeoutError) as error:
            _log.warning("no link to %s at %s (%r): requests go by Serve's handles", name, where, error)
            self._not_before[name] = self._clock() + _AGAIN_S
