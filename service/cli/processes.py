"""Processes of this machine, as Linux shows them in /proc: those of a session, and the one that listens on a port.

All processes that a service starts are in one session (`guard.py`), whoever their parents are by now.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
#: states of processes that have ended
_ENDED = "ZX"
#: a socket's state in /proc/net/tcp
_LISTEN = "0A"
_POLL_S = 0.02


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
    while left := of_session(session).keys() - {os.getpid()}:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def listener(port: int, pids: Iterable[int]) -> int | None:
    """Which of the processes listens on a TCP port. None if none of them does."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for pid in pids:
        with suppress(OSError):
            for descriptor in (_PROC / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in sockets:
                        return pid
    return None


def _listening(port: int) -> Iterable[str]:
    """The inodes of the sockets that listen on a port."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
