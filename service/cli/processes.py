"""The processes of a session (`guard.py`) and threads that watch them.

`ProcessWatch` tells of the end of a process without which Ray cannot heal itself. Serve replaces all other processes
once they have ended. `IngressWatch` ends an ingress that has stopped to answer.
"""

import http.client
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

from service.cli.own_port import OwnPort

_POLL_S = 0.02
#: seconds between two looks at the processes, and between two questions to the ingress; a question may take as long
_LOOK_S, _ASK_S = 0.5, 2.0
#: Seconds without an answer after which an ingress is killed: one that takes no CPU time at all, and one that is busy.
_STOPPED_S, _BUSY_S = 8.0, 30.0


def runs(process: psutil.Process) -> bool:
    """Whether a process has not ended. A zombie has."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    return False


def of_session(session: int) -> list[psutil.Process]:
    """The processes of a session that have not ended, in the order of their starts."""
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == session and runs(process):
                members.append(process)
    return sorted(members, key=lambda process: process.create_time())


def kill_session(session: int, within_s: float) -> bool:
    """SIGKILL to every process of a session but this one. False if some have not ended after `within_s`."""
    until = time.monotonic() + within_s
    while processes := [process for process in of_session(session) if process.pid != os.getpid()]:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def listener(port: int, processes: Iterable[psutil.Process]) -> psutil.Process | None:
    """The process that listens on a TCP port; None if none of them does."""
    for process in processes:
        with suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return process
    return None


def needed(session: int) -> dict[psutil.Process, str]:
    """The processes that nothing replaces, named: the GCS, the raylet, and its agents, without which it ends."""
    seen = {}
    for process in of_session(session):
        with suppress(psutil.NoSuchProcess):
            seen[process] = process.name(), process.ppid(), " ".join(process.cmdline()).lower()
    latest = {name: process for process, (name, _, _) in seen.items()}
    heads = {latest[name]: f"Ray's {name}" for name in ("gcs_server", "raylet")}
    agents = {
        process: "an agent of Ray's raylet"
        for process, (_, parent, command_line) in seen.items()
        if parent == latest["raylet"].pid and "agent" in command_line
    }
    return agents | heads  # an agent is named, though the raylet soon ends, too


class ProcessWatch(threading.Thread):
    """Calls `lost` with the name of the first of these processes that ends."""

    def __init__(self, processes: dict[psutil.Process, str], lost: Callable[[str], None]) -> None:
        super().__init__(name="needed", daemon=True)
        self._processes, self._lost = processes, lost

    def run(self) -> None:
        while True:
            for process, name in self._processes.items():
                if not runs(process):
                    self._lost(f"{name} (process {process.pid})")
                    return
            time.sleep(_LOOK_S)


class IngressWatch(threading.Thread):
    """Kills the process that listens on the port once it has been silent for too long. `say` gets a line before."""

    def __init__(self, port: OwnPort, say: Callable[[str], None]) -> None:
        super().__init__(name="silence", daemon=True)
        self._port, self._say = port, say

    def run(self) -> None:
        while True:
            since = time.monotonic()
            if self._answers():
                time.sleep(_ASK_S)
            else:
                with suppress(psutil.NoSuchProcess):
                    self._wait_or_kill(since)

    def _wait_or_kill(self, since: float) -> None:
        ingress = listener(self._port.port, of_session(os.getsid(0)))
        first = ingress and ingress.cpu_times()
        while ingress and not self._answers():
            silent = time.monotonic() - since
            if silent > (_STOPPED_S if ingress.cpu_times() == first else _BUSY_S):
                self._say(f"the ingress has not answered for {silent:.0f} s, so its process {ingress.pid} is replaced")
                ingress.kill()
                return

    def _answers(self) -> bool:
        """False if nothing comes in time. Any other trouble of a connection means that the port has no process."""
        try:
            self._port.get("/live", _ASK_S)
        except TimeoutError:
            return False
        except (OSError, http.client.HTTPException):
            pass
        return True
