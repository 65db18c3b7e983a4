"""`mrp-serve serve` as a user starts it, and its processes by their part in the service: which run, which stay behind.

Used by `faults.py`. A process belongs to the family if it, or one that started it, was seen under the program. So it
stays known when its parents have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from loadtest.harness import ROOT, free_port

REPLICAS = 2
#: seconds: between two looks, until a supervisor starts a program again, for a program and for the rest to end
LOOK_S, _RESTART_S, _EXIT_S, _BEHIND_S = 0.25, 1.0, 60.0, 10.0
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


class Program:
    """`mrp-serve serve` in a process group of its own. `supervised`: it is started again whenever it ends."""

    def __init__(self, arguments: argparse.Namespace, family: Family) -> None:
        self._port, self._family, self._supervised = free_port(), family, arguments.supervised
        self.url = f"http://127.0.0.1:{self._port}"
        self._flags = [*arguments.flags.split(), "--num-replicas", str(REPLICAS)]
        self._flags += ["--api-server-count", str(arguments.ingresses)] if arguments.ingresses > 1 else []
        self.exits: list[int] = []
        self._begin()

    def _begin(self) -> None:
        command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(self._port), *self._flags]
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=sys.stderr, start_new_session=True
        )
        self._family.joins(self._process.pid)

    @property
    def pid(self) -> int:
        """The program that was started last."""
        return self._process.pid

    def ended(self) -> bool:
        """Whether it has ended for good. Starts it again if it is supervised."""
        if self._process.poll() is None:
            return False
        if not self._supervised:
            return True
        self.exits.append(self._process.returncode)
        time.sleep(_RESTART_S)
        self._begin()
        return False

    async def end(self) -> dict[str, Any]:
        """Ends it, and what it leaves behind. Returns how it ended, and the parts that stayed."""
        by, began = "itself", time.monotonic()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                by = number.name
                self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(self._process.wait, _EXIT_S)
        exit_s, behind = time.monotonic() - began, time.monotonic() + _BEHIND_S
        while self._family.alive and time.monotonic() < behind:
            await asyncio.sleep(LOOK_S)
        stayed = [part_of(pid) for pid in self._family.alive]
        self._family.end()
        exits = [*self.exits, self._process.returncode]
        return {"exit": exits, "ended_by": by, "exit_s": round(exit_s, 1), "stay": stayed}


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
