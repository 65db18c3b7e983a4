"""Draining of one ingress: it refuses new requests and finishes the requests in progress, or aborts them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import CountError, problem
from service.errors import NotReady
from service.gateway.http.bodies import Interruptible

_RETRY_S = 5.0


class Draining:
    """The number of requests in progress at one ingress, and whether the ingress still takes new ones.

    A request whose body still comes is not in progress.
    """

    def __init__(self) -> None:
        self._requests = 0
        self._draining = self._aborted = False
        self._blocks: set[Interruptible] = set()
        self._bodies: set[Interruptible] = set()

    @property
    def in_flight(self) -> int:
        return self._requests - len(self._bodies)

    @contextmanager
    def counted(self) -> Iterator[None]:
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def begin(self) -> int:
        """Refuses new requests from now on, and those whose body still comes. Returns the number in progress."""
        if not self._draining:
            self._draining = True
            for body in self._bodies:
                body.end(_draining_error())
        return self.in_flight

    def abort(self) -> None:
        """Ends the requests in progress with NotReady."""
        self.begin()
        if not self._aborted:
            self._aborted = True
            for block in self._blocks:
                block.end(_abort_error())

    def check(self) -> None:
        if self._draining:
            raise _draining_error()

    def reading(self) -> AbstractContextManager[None]:
        """Runs the block, which waits for a part of a body. Ends it with NotReady when the draining begins, or has."""
        self.check()
        return Interruptible(self._bodies)

    def abortable(self) -> AbstractContextManager[None]:
        """Runs the block. Ends it with NotReady when `abort` is called, or has been."""
        if self._aborted:
            raise _abort_error()
        return Interruptible(self._blocks)


def _draining_error() -> NotReady:
    return NotReady("draining: this server is about to stop and takes no new requests", retry_after=_RETRY_S)


def _abort_error() -> NotReady:
    return NotReady("the server shut down before the answer was complete", retry_after=_RETRY_S)


class DrainGate:
    """Counts POST requests to the last byte of the answer. Refuses them while draining, within their bodies, too."""

    def __init__(self, app: ASGIApp, draining: Draining, count: CountError) -> None:
        self._app = app
        self._draining = draining
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        try:
            self._draining.check()
        except NotReady as error:
            self._count(error)
            return await problem(error, scope["request_id"])(scope, receive, send)
        whole = False

        async def receive_body() -> Message:
            nonlocal whole
            if whole:
                return await receive()
            with self._draining.reading():
                message = await receive()
            whole = not message.get("more_body", False)
            return message

        with self._draining.counted():
            return await self._app(scope, receive_body, send)
