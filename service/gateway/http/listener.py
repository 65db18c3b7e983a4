"""The ingress's own HTTP server, without a proxy before it. It runs in the event loop of its caller."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from service.gateway.http.guarded import GuardedProtocol
from service.gateway.http.middleware import CancelOnDisconnect

#: seconds for which a connection without requests stays open, as at Serve's proxies
_KEEP_ALIVE_S = 90
#: connections that wait until they are accepted
_BACKLOG = 2048


class _Server(uvicorn.Server):
    """Leaves signals alone: the process that runs it has its own handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """An HTTP server on one address. `start` makes it."""

    def __init__(self, server: _Server, task: asyncio.Task[None]) -> None:
        self._server, self._task = server, task

    @classmethod
    async def start(cls, app: ASGIApp, host: str, port: int) -> Listener:
        """Listens on the address from now on. OSError if it is taken."""
        bound = bind(host, port)
        config = uvicorn.Config(
            CancelOnDisconnect(app),
            http=GuardedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            backlog=_BACKLOG,
        )
        server = _Server(config)
        return cls(server, asyncio.create_task(server.serve(sockets=[bound])))

    @property
    def listens(self) -> bool:
        """Whether the server runs."""
        return not self._task.done()

    async def close(self, within_s: float) -> None:
        """Accepts no more connections, and waits for the requests in progress, at most `within_s` seconds."""
        self._server.config.timeout_graceful_shutdown = max(1, round(within_s))
        self._server.should_exit = True
        await self._task


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens.

    It names its protocol: asyncio sends small packets at once (TCP_NODELAY) on such sockets only. Else the body of an
    answer waits some 40 ms for the client to acknowledge the head.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
