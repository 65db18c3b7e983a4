"""`mrp-serve serve`: the service on one machine. Clusters deploy `service.app:build` instead."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from urllib.request import getproxies, proxy_bypass

from service.cli import cluster, draining, preflight, private
from service.cli.guard import Exit, guarded, listen, say
from service.cli.options import with_settings
from service.cli.own_port import OwnPort, in_url
from service.cli.processes import IngressWatch, ProcessWatch, needed
from service.settings.settings import LOG_PIPE, Settings

#: seconds that the end may take beyond draining
_END_S = 15.0
#: seconds until the program has noticed that requests are answered
_READY_S = 1.0
#: seconds for requests in progress, and for all of the end, when Ray cannot go on
_LOST_DRAIN_S, _LOST_END_S = 3.0, 4.0
#: the line that ends the log pipe
_PIPE_END = b"\0\n"


@with_settings()
def command(settings: Settings) -> None:
    """Serves a checkpoint over HTTP until it is interrupted."""
    started = time.monotonic()
    settings = preflight.check(settings)
    for warning in (*private.check_files(settings), *preflight.warnings()):
        say(f"warning: {warning}")
    say(f"loading {settings.model_name} …")
    folder = private.make_run_folder()
    status = guarded(partial(_serve, settings, started, folder), settings.drain_timeout_s + _END_S)
    if status == Exit.ENDED:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(status)


def _serve(settings: Settings, started: float, folder: Path, orders: socket.socket) -> int:
    """The service's own process, until the service is to end. Returns the exit status."""
    os.environ["RAY_TMPDIR"] = str(folder)
    end = _End(folder, settings.drain_timeout_s)
    listen(orders, end.stop)
    with LogPipe(folder):
        cluster.begin(settings, say)
        ProcessWatch(needed(os.getsid(0)), end.lost).start()
        cluster.deploy(settings, say)
        return asyncio.run(_until(end, settings, started))


async def _until(end: _End, settings: Settings, started: float) -> Exit:
    """Says that the service is ready. Returns when it has ended and drained."""
    end.serving.set()
    await draining.prepare()
    if settings.ingress_listens:
        IngressWatch(OwnPort(settings.host, settings.port), say).start()
    say(_ready(settings, time.monotonic() - started, preflight.device(settings)))
    status = await asyncio.to_thread(end.wait)
    timeout_s = settings.drain_timeout_s if status == Exit.ENDED else min(settings.drain_timeout_s, _LOST_DRAIN_S)
    if not await draining.drain(timeout_s):
        say(f"requests were cut after {timeout_s:g} s")
    return status


class _End:
    """Why the service ends. A service that has not started yet has no requests, so it ends at once."""

    def __init__(self, folder: Path, drain_s: float) -> None:
        self._drain_s = drain_s
        self._logs = folder / "ray" / "session_latest" / "logs"
        self._statuses: SimpleQueue[Exit] = SimpleQueue()
        self.serving = threading.Event()

    def stop(self) -> None:
        drain = f": requests in flight have {self._drain_s:g} s; a second signal cuts them"
        say(f"shutting down{drain if self.serving.is_set() else ''} …")
        self._end(Exit.ENDED)

    def lost(self, process: str) -> None:
        """Ends the service by the loss of a process that Ray needs. Ray may hang then, so the time is limited."""
        say(f"{process} has ended, so the service ends; Ray's logs: {self._logs}")
        deadline = threading.Timer(_LOST_END_S, os._exit, [Exit.LOST])
        deadline.daemon = True
        deadline.start()
        self._end(Exit.LOST)

    def wait(self) -> Exit:
        return self._statuses.get()

    def _end(self, status: Exit) -> None:
        if not self.serving.wait(_READY_S):
            os._exit(status)
        self._statuses.put(status)


class LogPipe:
    """A named pipe for the log lines of the replicas, copied to stderr. No other user may enter its `folder`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log"

    def __enter__(self) -> LogPipe:
        os.mkfifo(self.path, 0o600)
        # Opened for reading and writing: the pipe then exists before the first writer and stays after the last one.
        self._descriptor = os.open(self.path, os.O_RDWR)
        self._thread = threading.Thread(target=self._copy, name="log-pipe", daemon=True)
        self._thread.start()
        os.environ[LOG_PIPE] = str(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        del os.environ[LOG_PIPE]
        os.write(self._descriptor, _PIPE_END)
        self._thread.join()
        os.close(self._descriptor)
        self.path.unlink()

    def _copy(self) -> None:
        with open(self._descriptor, "rb", closefd=False) as lines:
            for line in lines:
                if line.endswith(_PIPE_END):
                    return
                with suppress(OSError):  # without a reader of stderr; replicas would wait if nobody read the pipe
                    sys.stderr.write(line.decode("utf-8", "replace"))
                    sys.stderr.flush()


def _ready(settings: Settings, seconds: float, device: str) -> str:
    port = OwnPort(settings.host, settings.port)
    url, curl = port.url, "curl -s"
    if getproxies().keys() & {"http", "all"} and not proxy_bypass(port.host):
        curl += " --noproxy '*'"
    body = '{"messages": [{"role": "user", "content": "Tom has 5 apples, gets 3, loses 2."}]}'
    has_keys, local = settings.api_keys or settings.api_keys_file, settings.host in {"localhost", "::1"}
    key, warning = "-H 'Authorization: Bearer KEY' " if has_keys else "", ""
    if not (has_keys or local or settings.host.startswith("127.")):
        address = f"{in_url(settings.host)}:{settings.port}"
        warning = f"\nwarning: no API keys are set, so whoever reaches {address} may use the service"
    return (
        f"{settings.model_name} is served on {url} after {seconds:.0f} s, on {device}; "
        f"fields and examples: {url}/docs\n"
        f"try: {curl} {url}/generate -H 'Content-Type: application/json' {key}-d '{body}'{warning}"
    )
