"""Requests of one ingress to the replicas, over one link to each."""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from service.errors import InvalidRequest
from service.ipc.messagepack import Unsendable
from service.link.client import AuthenticationFailed, Link, PendingCall, ReplicaDraining
from service.link.protocol import Method
from service.messages.replica_status import Address, Status, resting
from service.messages.wire import Encoded, Failure, ReplicaRequest, ReplicaStream, patience_s, too_late
from service.routing.router import Router

_log = logging.getLogger(__name__)

#: seconds to connect and to get the replica's proof, and seconds until the next try
_OPEN_S = 2.0
_AGAIN_S = 2.0


class ReplicaLinks:
    """Sends each request over the link of the replica that `router` chooses. Without a link, requests wait for one.

    `update` opens the links, and must be called again and again. `on_change` gets the number of replicas with a link.
    `links`: the open links by replica.
    """

    def __init__(
        self,
        router: Router,
        on_change: Callable[[int], None],
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.router = router
        self._on_change = on_change
        self._tls = tls
        self._clock = clock
        self.links: dict[str, Link] = {}
        self._not_before: dict[str, float] = {}
        self._unauthenticated: set[Address] = set()
        self._updating, self._updated = asyncio.Lock(), asyncio.Event()

    async def encode(self, request: ReplicaRequest) -> Encoded | Failure:
        call, item = await self._begin("encode", request)
        call.end()
        return cast(Encoded | Failure, item)

    async def stream(self, request: ReplicaRequest) -> ReplicaStream:
        call, item = await self._begin("stream", request)
        try:
            while item is not None:
                yield item
                item = await call.next()
        finally:
            call.end()

    async def _begin(self, method: Method, request: ReplicaRequest) -> tuple[PendingCall, Any]:
        """The call and its first item. DeadlineExceeded without one in time, InvalidRequest without an encoding."""
        try:
            async with asyncio.timeout(patience_s(request)):
                while True:
                    call = self._call(await self._chosen(request), method, request)
                    try:
                        return call, await call.next()
                    except ReplicaDraining:
                        call.end()
                    except BaseException:
                        call.end()
                        raise
        except TimeoutError:
            raise too_late(request) from None

    async def _chosen(self, request: ReplicaRequest) -> str:
        while (name := self.router.choose(request)) is None:
            await self._updated.wait()
        return name

    def _call(self, name: str, method: Method, request: ReplicaRequest) -> PendingCall:
        on_end = partial(self.router.inflight.end, name)
        try:
            return self.links[name].call(method, request, on_end)
        except Unsendable as error:
            on_end()
            raise InvalidRequest(
                "the request has an integer beyond 64 bits, half a surrogate pair or JSON deeper than 250 levels, "
                "which no replica can be sent"
            ) from error

    async def update(self, statuses: Sequence[Status]) -> list[Status]:
        """Opens a link to every replica that can generate. Returns the statuses as this ingress sees them.

        `statuses`: fresh answers; an older address may be another program's. A replica that drains is left out.
        """
        async with self._updating:
            healthy = {status.replica: status.address for status in statuses if status.failure is None}
            self.links = {name: link for name, link in self.links.items() if not link.lost}
            self._unauthenticated.intersection_update(healthy.values())
            await asyncio.gather(*(self._open(name, healthy[name]) for name in healthy.keys() - self.links.keys()))
            seen = [status for status in map(self._seen, statuses) if status is not None]
            linked = [status for status in seen if status.failure is None]
            self.router.inflight.set_replicas((status.replica for status in linked), resting(linked))
            self._on_change(len(linked))
            self._updated.set()
            self._updated = asyncio.Event()
            return seen

    def reaches(self, replica: str) -> bool:
        """Whether a replica has a link that takes requests."""
        link = self.links.get(replica)
        return link is not None and link.usable

    def _seen(self, status: Status) -> Status | None:
        link = self.links.get(status.replica)
        if link is not None and not link.usable and not link.lost:
            return None  # it drains
        if status.failure is not None or (link is not None and link.usable):
            return status
        return replace(status, failure="the ingress has no connection to it")

    async def _open(self, name: str, address: Address | None) -> None:
        if address is None or address in self._unauthenticated or self._clock() < self._not_before.get(name, 0.0):
            return
        endpoint = f"{address.host} port {address.port}"
        try:
            async with asyncio.timeout(_OPEN_S):
                inflight = self.router.inflight
                on_close, on_load = partial(inflight.remove, name), partial(inflight.set_others, name)
                self.links[name] = await Link.open(address, on_close, on_load, self._tls)
        except AuthenticationFailed as error:
            self._unauthenticated.add(address)
            _log.error("%s is not %s: %s. Nothing was sent there; it is not used again", endpoint, name, error)
        except (OSError, TimeoutError) as error:
            _log.warning("no link to %s at %s (%r): it gets no requests", name, endpoint, error)
            self._not_before[name] = self._clock() + _AGAIN_S
