"""The processes of a session (`guard.py`) and threads that watch them, by Linux's /proc.

`ProcessWatch` tells of the end of a process without which Ray cannot heal itself. Serve replaces all other processes
once they have ended. `IngressWatch` ends an ingress that has stopped to answer.
"""

import http.client
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
#: states of processes that have ended
_ENDED = "ZX"
#: a socket's state in /proc/net/tcp
_LISTEN = "0A"
_POLL_S = 0.02
#: seconds between two looks at the processes, and between two questions to the ingress; a question may take as long
_LOOK_S, _ASK_S = 0.5, 2.0
#: Seconds without an answer after which an ingress is killed: one that takes no CPU time at all, and one that is busy.
_STOPPED_S, _BUSY_S = 8.0, 30.0


@dataclass(frozen=True)
class Stat:
    """One line of /proc/PID/stat. `started`: a number that differs between processes of one pid. `cpu`: clock ticks."""

    name: str
    state: str
    parent: int
    session: int
    cpu: int
    started: int


def stat(pid: int) -> Stat | None:
    """None if the process has ended."""
    try:
        line = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    before, _, after = line.rpartition(")")
    fields = after.split()
    seen = Stat(
        name=before.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu=int(fields[11]) + int(fields[12]),
        started=int(fields[19]),
    )
    return None if seen.state in _ENDED else seen


def command_line(pid: int) -> str:
    """Empty if the process has ended."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def of_session(session: int) -> dict[int, Stat]:
    """The processes of a session that have not ended, by pid."""
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return {pid: seen for pid in pids if (seen := stat(pid)) is not None and seen.session == session}


def kill_session(session: int, within_s: float) -> bool:
    """SIGKILL to every process of a session but this one. False if some have not ended after `within_s`."""
    until = time.monotonic() + within_s
    while pids := of_session(session).keys() - {os.getpid()}:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def listener(port: int, pids: Iterable[int]) -> int | None:
    """The process that listens on a TCP port; None if none of them does."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    for pid in pids:
        with suppress(OSError):
            for descriptor in (_PROC / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in sockets:
                        return pid
    return None


def needed(session: int) -> dict[int, tuple[str, Stat]]:
    """The processes that nothing replaces, by pid: the GCS, the raylet, and its agents, without which it ends."""
    seen = of_session(session)
    latest = {process.name: pid for pid, process in sorted(seen.items(), key=lambda item: item[1].started)}
    heads = {latest[name]: (f"Ray's {name}", seen[latest[name]]) for name in ("gcs_server", "raylet")}
    agents = {
        pid: ("an agent of Ray's raylet", process)
        for pid, process in seen.items()
        if process.parent == latest["raylet"] and "agent" in command_line(pid).lower()
    }
    return agents | heads  # an agent is named, though the raylet soon ends, too


class ProcessWatch(threading.Thread):
    """Calls `lost` with the name of the first of these processes that ends."""

    def __init__(self, processes: dict[int, tuple[str, Stat]], lost: Callable[[str], None]) -> None:
        super().__init__(name="needed", daemon=True)
        self._processes, self._lost = processes, lost

    def run(self) -> None:
        while True:
            for pid, (name, was) in self._processes.items():
                if (now := stat(pid)) is None or now.started != was.started:
                    self._lost(f"{name} (process {pid})")
                    return
            time.sleep(_LOOK_S)


class IngressWatch(threading.Thread):
    """Kills the process that listens on the port once it has been silent for too long. `say` gets a line before."""

    def __init__(self, host: str, port: int, say: Callable[[str], None]) -> None:
        super().__init__(name="silence", daemon=True)
        self._host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - where to ask
        self._port, self._say = port, say

    def run(self) -> None:
        while True:
            since = time.monotonic()
            if self._answers():
                time.sleep(_ASK_S)
            else:
                self._wait_or_kill(since)

    def _wait_or_kill(self, since: float) -> None:
        pid = listener(self._port, of_session(os.getsid(0)))
        first = pid and stat(pid)
        while pid and first and not self._answers():
            now, silent_s = stat(pid), time.monotonic() - since
            if now is None or now.started != first.started:
                return
            if silent_s > (_STOPPED_S if now.cpu == first.cpu else _BUSY_S):
                self._say(f"the ingress has not answered for {silent_s:.0f} s, so its process {pid} is replaced")
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                return

    def _answers(self) -> bool:
        """False if nothing comes in time. Any other trouble of a connection means that the port has no process."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_ASK_S)
        try:
            connection.request("GET", "/live")
            connection.getresponse().read()
        except TimeoutError:
            return False
        except (OSError, http.client.HTTPException):
            return True
        finally:
            connection.close()
        return True
