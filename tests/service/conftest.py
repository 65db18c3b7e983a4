"""One real service a session: `mrp-serve serve` as a user starts it, on a golden checkpoint."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "sdar-mrp-random-b"
_START_S = 150
_STOP_S = 60


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Service:
    """The running program, and where it is."""

    def __init__(self, *flags):
        self.port = free_port()
        command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(self.port), *map(str, flags)]
        self.process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": "."},
        )
        self.url = f"http://127.0.0.1:{self.port}"
        self.health_while_loading = set()

    def wait_until_ready(self):
        """Polls /health until it says 200; what it said before is kept."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                status = httpx.get(f"{self.url}/health", timeout=5).status_code
            except httpx.TransportError:
                status = None
            if status == 200:
                return
            self.health_while_loading.add(status)
            time.sleep(0.2)
        self.process.kill()
        pytest.fail(f"the service did not start: {self.process.stderr.read()}")

    def stop(self):
        """SIGTERM; the exit status and what was said on stderr."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=_STOP_S)
        return self.process.returncode, said


@pytest.fixture(scope="session")
def log_file(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "service.jsonl"


@pytest.fixture(scope="session")
def service(log_file):
    logs = ("--log-level", "debug", "--log-format", "json", "--log-file", log_file)
    running = Service("--model", GOLDEN, "--api-keys", "first,second", *logs)
    try:
        running.wait_until_ready()
        yield running
    finally:
        status, said = running.stop()
    assert status == 0, said
    assert "is served on" in said
    assert "shutting down" in said
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{running.url}/health", timeout=5)


@pytest.fixture
def client(service):
    with httpx.Client(base_url=service.url, timeout=60, headers={"authorization": "Bearer second"}) as opened:
        yield opened


@pytest.fixture(scope="session")
def pair():
    """A service of two replicas behind two ingresses, and a client of it."""
    running = Service("--model", GOLDEN, "--num-replicas", 2, "--num-ingresses", 2)
    limits = httpx.Limits(max_connections=64)
    try:
        running.wait_until_ready()
        with httpx.Client(base_url=running.url, timeout=120, limits=limits) as opened:
            yield running, opened
    finally:
        status, said = running.stop()
    assert status == 0, said
