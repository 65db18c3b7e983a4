"""The ingress's own HTTP server, without a proxy before it. It runs in the event loop of its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from service.gateway.http.guarded import GuardedProtocol
from service.gateway.http.middleware import cancelled_on_disconnect
from service.gateway.http.sockets import BACKLOG, bind

#: seconds for which a connection without requests stays open, as at Serve's proxies
_KEEP_ALIVE_S = 90


class _Server(uvicorn.Server):
    """Leaves signals alone: the process that runs it has its own handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """An HTTP server on one address, from its construction on. OSError if the address is taken."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        bound = bind(host, port)
        config = uvicorn.Config(
            cancelled_on_disconnect(app),
            http=GuardedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            backlog=BACKLOG,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[bound]))

    @property
    def listens(self) -> bool:
        return not self._task.done()

    async def close(self, within_s: float) -> None:
        """Accepts no more connections, and waits for the requests in progress, at most `within_s` seconds."""
        self._server.config.timeout_graceful_shutdown = max(1, round(within_s))
        self._server.should_exit = True
        await self._task
