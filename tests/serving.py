"""An application behind a real HTTP server, by a thread of this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from service.gateway.http.listener import bind


@contextmanager
def listening(app: ASGIApp) -> Iterator[str]:
    """Where an application is served."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    with bind("127.0.0.1", 0) as port:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [port]})
        thread.start()
        yield f"http://127.0.0.1:{port.getsockname()[1]}/"
        server.should_exit = True
        thread.join()
