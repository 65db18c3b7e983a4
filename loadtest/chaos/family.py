"""The processes of a program, by their part in the service: which live, which are stopped, which stay behind.

`faults.py` asks. A process belongs to the family if it or a process that started it was seen under the program, so it
stays known when its parents have ended.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

#: how the command lines of a part begin, or of the program of Python that it is
PARTS = {
    "engine": "service.replica.process",
    "replica": "ray::ServeReplica:mrp:Generator",
    "ingress": "ray::ServeReplica:mrp:Ingress",
    "proxy": "ray::ProxyActor",
    "controller": "ray::ServeController",
    "raylet": "raylet/raylet",
    "gcs": "gcs/gcs_server",
    "agent": "ray::DashboardAgent",
    "rtenv": "ray::RuntimeEnvAgent",
    "driver": "service.cli.main",
}
_STATE, _PARENT, _STARTED = 0, 1, 19


class Family:
    """The processes of one program after the other. `look` must be called often, and before a process is named."""

    def __init__(self) -> None:
        self._members: dict[int, str] = {}

    def joins(self, program: int) -> None:
        """A program has been started."""
        self._members[program] = _fields(program)[_STARTED]

    def look(self) -> None:
        """Finds the processes that members have started, and forgets those that have ended."""
        fields = {pid: stat for entry in Path("/proc").glob("[0-9]*") if (stat := _fields(pid := int(entry.name)))}
        self._members = {
            pid: started
            for pid, started in self._members.items()
            if pid in fields and fields[pid][_STARTED] == started and fields[pid][_STATE] != "Z"
        }
        for pid, stat in sorted(fields.items(), key=lambda item: int(item[1][_STARTED])):
            if int(stat[_PARENT]) in self._members and stat[_STATE] != "Z":
                self._members.setdefault(pid, stat[_STARTED])

    def of(self, part: str) -> list[int]:
        """The processes of a part."""
        return sorted(pid for pid in self._members if part_of(pid) == part)

    def running(self, part: str) -> int:
        """How many processes of a part are not stopped."""
        return sum(_fields(pid)[_STATE : _STATE + 1] != ["T"] for pid in self.of(part))

    @property
    def alive(self) -> list[int]:
        """Every process that lives."""
        self.look()
        return sorted(self._members)

    def end(self) -> None:
        """Kills what is left, stopped processes included."""
        for pid in self.alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def part_of(pid: int) -> str:
    """The part that a process is, else the beginning of its command line. Empty if it has ended."""
    with suppress(OSError):
        words = (Path("/proc") / str(pid) / "cmdline").read_text(errors="replace").split("\0")
        for part, mark in PARTS.items():
            if words[0].startswith(mark) or words[0].endswith(mark) or mark in words[1:5]:
                return part
        return " ".join(words)[:80].strip()
    return ""


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name. Empty if the process has ended."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
