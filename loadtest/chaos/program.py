"""`mrp-serve serve` as a user starts it, and its processes by their part in the service: which run, which stay behind.

Used by `faults.py`. A process belongs to the tree if it, or one that started it, was seen under the program. So it
stays known when its parents have ended.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any

import psutil

from loadtest.harness import free_port, part_of, start

REPLICAS = 2
#: seconds: between two looks, until a supervisor starts a program again, for a program and for the rest to end
POLL_S, _RESTART_S, _EXIT_S, _BEHIND_S = 0.25, 1.0, 60.0, 10.0


class ProcessTree:
    """The processes of one program after the other. `update` must be called often, and before a process is named."""

    def __init__(self) -> None:
        self._members: dict[int, psutil.Process] = {}

    def add(self, program: int) -> None:
        self._members[program] = psutil.Process(program)

    def update(self) -> None:
        self._members = {pid: process for pid, process in self._members.items() if _status(process)}
        every = psutil.process_iter(["ppid", "create_time"])
        for process in sorted(every, key=lambda process: process.info["create_time"] or 0.0):
            if process.info["ppid"] in self._members and process.pid not in self._members and _status(process):
                self._members[process.pid] = process

    def of(self, part: str) -> list[int]:
        return sorted(pid for pid in self._members if part_of(pid) == part)

    def running(self, part: str) -> int:
        return sum(_status(self._members[pid]) != psutil.STATUS_STOPPED for pid in self.of(part))

    @property
    def alive(self) -> list[int]:
        self.update()
        return sorted(self._members)

    def end(self) -> None:
        for pid in self.alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Program:
    """`mrp-serve serve` in a process group of its own. `supervised`: it is started again whenever it ends."""

    def __init__(self, arguments: argparse.Namespace, tree: ProcessTree) -> None:
        self._port, self._tree, self._supervised = free_port(), tree, arguments.supervised
        self.url = f"http://127.0.0.1:{self._port}"
        self._flags = [*arguments.flags.split(), "--num-replicas", str(REPLICAS)]
        self._flags += ["--api-server-count", str(arguments.ingresses)] if arguments.ingresses > 1 else []
        self.exits: list[int] = []
        self._begin()

    def _begin(self) -> None:
        self._process = start(self._port, self._flags, os.environ, start_new_session=True)
        self._tree.add(self._process.pid)

    @property
    def pid(self) -> int:
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
        by, began = "itself", time.monotonic()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                by = number.name
                self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(self._process.wait, _EXIT_S)
        exit_s, behind = time.monotonic() - began, time.monotonic() + _BEHIND_S
        while self._tree.alive and time.monotonic() < behind:
            await asyncio.sleep(POLL_S)
        stayed = [part_of(pid) for pid in self._tree.alive]
        self._tree.end()
        exits = [*self.exits, self._process.returncode]
        return {"exit": exits, "ended_by": by, "exit_s": round(exit_s, 1), "stay": stayed}


def _status(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        status = str(process.status()) if process.is_running() else ""
        return "" if status == psutil.STATUS_ZOMBIE else status
    return ""
