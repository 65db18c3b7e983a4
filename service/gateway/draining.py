"""Draining of one ingress: it refuses new requests and finishes those in progress, or ends them by `cut`.

GET /health reports the draining, so a load balancer sends new requests elsewhere while running ones go on.
`cli/draining.py` stops the service and calls every ingress by its handle.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import NotReady
from service.gateway.http.errors import Count, problem

_RETRY_S = 5.0


class Draining:
    """The number of requests in progress at one ingress, and whether the ingress still takes new ones."""

    def __init__(self) -> None:
        self.in_hand = 0
        self._begun = self._cut = False
        self._limits: set[asyncio.Timeout] = set()

    def begin(self) -> int:
        """Refuses new requests from now on. Returns the number of requests in progress."""
        self._begun = True
        return self.in_hand

    def cut(self) -> None:
        """Ends the requests in progress with NotReady."""
        if not self._cut:
            self._begun = self._cut = True
            for limit in self._limits:
                limit.reschedule(0.0)

    def check(self) -> None:
        """Raises NotReady while draining."""
        if self._begun:
            raise NotReady("draining: this server is about to stop and takes no new requests", retry_after=_RETRY_S)

    def until_cut(self) -> AbstractAsyncContextManager[None]:
        """Runs the block. Ends it with NotReady when `cut` is called."""
        return _UntilCut(self._limits, asyncio.timeout(0.0 if self._cut else None))


class _UntilCut(AbstractAsyncContextManager[None]):
    """Every block of every stream enters one, so it is a class: a generator would cost twice as much."""

    __slots__ = ("_limit", "_limits")

    def __init__(self, limits: set[asyncio.Timeout], limit: asyncio.Timeout) -> None:
        self._limits, self._limit = limits, limit

    async def __aenter__(self) -> None:
        self._limits.add(self._limit)
        await self._limit.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        self._limits.discard(self._limit)
        try:
            await self._limit.__aexit__(*raised)
        except TimeoutError:
            raise NotReady("cut: this server stopped before the answer was complete", retry_after=_RETRY_S) from None


class DrainGate:
    """Counts POST requests from their first byte to the last byte of the answer. Refuses them while draining."""

    def __init__(self, app: ASGIApp, draining: Draining, count: Count) -> None:
        self._app = app
        self._draining = draining
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        try:
            self._draining.check()
        except NotReady as error:
            self._count(error)
            return await problem(error, scope["request_id"])(scope, receive, send)
        self._draining.in_hand += 1
        try:
            return await self._app(scope, receive, send)
        finally:
            self._draining.in_hand -= 1
