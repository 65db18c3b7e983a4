"""The watch over Ray's processes and the ingress, with other processes in their place."""

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from service.cli import processes
from service.cli.own_port import OwnPort
from service.cli.processes import listener, of_session

#: answers every request, and says its port
SERVER = """
import http.server
class Live(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Live)
print(server.server_port, flush=True)
server.serve_forever()
"""


class FakeProcess:
    """A process of a session, without children of its own."""

    def __init__(self, pid: int, name: str, parent: int, command: str = "") -> None:
        self.pid = pid
        self.name, self.ppid, self.cmdline = lambda: name, lambda: parent, lambda: [command or name]


def test_ray_needs_its_heads_and_the_raylets_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    session = [
        FakeProcess(3, "gcs_server", 1),
        FakeProcess(4, "raylet", 1),
        FakeProcess(5, "ray::Dashboard", 4, "ray::DashboardAgent"),
        FakeProcess(6, "ray::ServeRepli", 4, "ray::ServeReplica"),
        FakeProcess(7, "python", 1, "agent.py"),
    ]
    monkeypatch.setattr(processes, "of_session", lambda _: session)
    assert {process.pid: name for process, name in processes.needed(1).items()} == {
        5: "an agent of Ray's raylet",
        3: "Ray's gcs_server",
        4: "Ray's raylet",
    }


def test_the_end_of_a_needed_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_LOOK_S", 0.01)
    messages: queue.Queue[str] = queue.Queue()
    process = subprocess.Popen(["sleep", "1000"])
    processes.ProcessWatch({psutil.Process(process.pid): "the sleeper"}, messages.put).start()
    process.kill()
    assert messages.get(timeout=120) == f"the sleeper (process {process.pid})"
    process.wait()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[subprocess.Popen[str], int]]:
    for name, seconds in {"_ASK_S": 0.05, "_STOPPED_S": 0.2, "_BUSY_S": 1000.0}.items():
        monkeypatch.setattr(processes, name, seconds)
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        yield process, int(process.stdout.readline())
        process.kill()


def test_a_stopped_ingress_is_killed(server: tuple[subprocess.Popen[str], int]) -> None:
    process, port = server
    messages: queue.Queue[str] = queue.Queue()
    watch = processes.IngressWatch(OwnPort("0.0.0.0", port), messages.put)
    assert watch._answers()
    os.kill(process.pid, signal.SIGSTOP)
    watch._wait_or_kill(time.monotonic())
    assert process.wait(30) == -signal.SIGKILL
    assert f"so its process {process.pid} is replaced" in messages.get_nowait()
    assert watch._answers(), "nobody listens: Serve starts another one"


def test_a_busy_ingress_has_more_time(
    server: tuple[subprocess.Popen[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, port = server
    ticks = iter(range(1000))
    monkeypatch.setattr(psutil.Process, "cpu_times", lambda _: next(ticks))
    monkeypatch.setattr(processes.IngressWatch, "_answers", lambda _: next(ticks) > 20)
    processes.IngressWatch(OwnPort("127.0.0.1", port), print)._wait_or_kill(time.monotonic() - 10)
    assert process.poll() is None


def test_a_port_of_others_is_left_alone(server: tuple[subprocess.Popen[str], int]) -> None:
    process, port = server
    its_process = psutil.Process(process.pid)
    assert listener(port, [psutil.Process(), its_process]) == its_process
    assert its_process in of_session(os.getsid(0))
    assert listener(port, [psutil.Process()]) is None
