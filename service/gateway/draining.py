"""Draining of one ingress: it refuses new requests and finishes the requests in progress, or aborts them."""

from contextlib import AbstractContextManager

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.errors import CountError, problem
from service.errors import NotReady
from service.gateway.http.bodies import Bodies, Interruptible

_RETRY_S = 5.0


class Draining:
    """The number of requests in progress at one ingress, and whether the ingress still takes new ones.

    A request whose body still comes (`bodies`) is not in progress.
    """

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._requests = 0
        self._draining = self._aborted = False
        self._blocks: set[Interruptible] = set()

    @property
    def in_flight(self) -> int:
        return self._requests - len(self._bodies)

    def begin(self) -> int:
        """Refuses new requests from now on, and those whose body still comes. Returns the number in progress."""
        self._draining = True
        self._bodies.end_all(_draining_error())
        return self.in_flight

    def abort(self) -> None:
        """Ends the requests in progress with NotReady."""
        self.begin()
        self._aborted = True
        for block in self._blocks:
            block.end(_abort_error())

    def check(self) -> None:
        if self._draining:
            raise _draining_error()

    def abortable(self) -> AbstractContextManager[None]:
        """Runs the block. Ends it with NotReady when `abort` is called, or has been."""
        if self._aborted:
            raise _abort_error()
        return Interruptible(self._blocks)

    def gate(self, app: ASGIApp, count: CountError) -> ASGIApp:
        """Counts POST requests to the last byte of the answer. Refuses them while draining."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["method"] != "POST":
                return await app(scope, receive, send)
            if self._draining:
                count(error := _draining_error())
                return await problem(error, scope["request_id"])(scope, receive, send)
            self._requests += 1
            try:
                await app(scope, receive, send)
            finally:
                self._requests -= 1

        return counted


def _draining_error() -> NotReady:
    return NotReady("draining: this server is about to stop and takes no new requests", retry_after=_RETRY_S)


def _abort_error() -> NotReady:
    return NotReady("the server shut down before the answer was complete", retry_after=_RETRY_S)
