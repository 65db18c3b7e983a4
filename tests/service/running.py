"""Runs `mrp-serve serve` as a separate process, one at a time."""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.service.pace import VARIABLE, Pace

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "sdar-mrp-random-b"
#: modules that a service's processes do not find
ABSENT = ROOT / "tests" / "service" / "absent"
#: variables of proxies that do not answer; a service in whose environment they are has to serve all the same
DEAD_PROXIES = {
    name: "http://127.0.0.1:9"
    for kind in ("http", "https", "all", "grpc")
    for name in (f"{kind}_proxy", f"{kind}_proxy".upper())
}
#: long enough for a machine that is busy with much else
_START_S, _STOP_S = 600, 180


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Service:
    """The running program and its address. `{folder}` in its flags is a folder in which it may write.

    `before`: words before the command.

    `pace`: of its replicas, if the module is `tests.service.program`. `loaded_at`: the end of the last load.
    """

    def __init__(self, folder: Path, module: str, *flags: object, before: Sequence[object] = ()) -> None:
        self.port = free_port()
        self.pace, self._stderr = Pace(folder / "pace"), folder / "stderr"
        command = [sys.executable, "-m", module, *before, "serve", "--model", GOLDEN, "--port", self.port, *flags]
        with self._stderr.open("w") as stderr:  # a file: a pipe that nobody reads would fill up and hold all that logs
            self.process = subprocess.Popen(
                [str(word).format(folder=folder) for word in command],
                cwd=ROOT,
                stderr=stderr,
                env={
                    **os.environ,
                    **DEAD_PROXIES,
                    "PYTHONPATH": f"{ABSENT}{os.pathsep}{ROOT}",
                    VARIABLE: str(folder / "pace"),
                },
            )
        self.loaded_at = -math.inf
        self.url = f"http://127.0.0.1:{self.port}"
        self.health_while_loading: set[int | None] = set()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def becomes_ready(self) -> bool:
        """Polls /health until it is 200, and keeps the earlier states. False, after an end, if that takes long."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                status = httpx.get(f"{self.url}/health", timeout=5).status_code
            except httpx.TransportError:
                status = None
            if status == 200:
                return True
            self.health_while_loading.add(status)
            time.sleep(0.2)
        self.process.kill()
        self.process.wait()
        return False

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_S)


@dataclass
class Services:
    """At most one service: starting another one ends the running one. `folder` makes a new folder."""

    folder: Callable[[], Path]
    _running: dict[tuple[object, ...], Service] = field(default_factory=dict)
    _failed: dict[tuple[object, ...], str] = field(default_factory=dict)

    def of(self, module: str, *flags: object) -> Service:
        """The service of that module and these flags. One that did not start is not tried again."""
        kind = (module, *flags)
        if reason := self._failed.get(kind):
            pytest.fail(reason)
        if kind not in self._running or self._running[kind].process.poll() is not None:
            self.end()
            service = Service(self.folder(), module, *flags)
            if not service.becomes_ready():
                self._failed[kind] = f"the service did not start: {service.stderr}"
                pytest.fail(self._failed[kind])
            self._running[kind] = service
        return self._running[kind]

    def end(self) -> None:
        """Ends it as a user would, and returns what went wrong."""
        while self._running:
            _, service = self._running.popitem()
            service.pace.full()
            assert service.stop() == 0, service.stderr
            assert "is served on" in service.stderr
            assert "shutting down" in service.stderr
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{service.url}/health", timeout=5)
