"""Trials of constraints: each is compiled in a process of its own first, which ends at the limits of time and memory.

The library has limits of its own. They bound neither its time nor its memory: 100 characters of a schema can take
minutes, 2 KB of a grammar gigabytes. It cannot be stopped within a process. So `GrammarCompiler` tries a constraint here,
and only one that stays within the limits is compiled beside the engine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection

from service.constraints.constraint import Constraint
from service.constraints.vocabulary import Definition
from service.errors import ConstraintNotAvailable, InvalidRequest

#: What a trial may take: CPU seconds, seconds, bytes. The largest sets of tools take a tenth of the first and the last.
CPU_SECONDS, SECONDS, MAX_BYTES = 2, 10, 128 * 1024 * 1024
#: The library descends into schemas and rules by recursion. Memory of a stack is taken only as it is used.
STACK = 256 * 1024 * 1024


class Trials:
    """The trials of a vocabulary. Its process starts with the first one. Any thread may try."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket

    def run(self, constraint: Constraint) -> int:
        """Compiles a constraint: the bytes that its grammar keeps. Blocks for `SECONDS` and while the process starts.

        InvalidRequest if the constraint is wrong or takes more than it may.
        """
        here, there = socket.socketpair()
        with there:
            self._ready()
            with self._lock:
                socket.send_fds(self._end, [b"."], [there.fileno()])
        with Connection(here.detach()) as trial:
            try:
                trial.send(constraint)
                result: int | InvalidRequest = trial.recv()
            except (EOFError, OSError):
                raise self._died(constraint.param) from None
        if isinstance(result, InvalidRequest):
            raise result
        return result

    def close(self) -> None:
        """Ends the process. Trials under way end by their limits."""
        with self._lock:
            if self._process is not None:
                self._end.close()
                self._process.wait()
                self._process = None

    def _ready(self) -> None:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            self._end, there = socket.socketpair()
            with there:
                command = [sys.executable, "-P", "-m", "service.constraints.trial_process", str(there.fileno())]
                self._process = subprocess.Popen(  # noqa: S603 - this program
                    command,
                    pass_fds=[there.fileno()],
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # the library may write a part of a grammar when it fails
                    env=os.environ
                    | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "MALLOC_ARENA_MAX": "1"},
                )
            with Connection(self._end.dup().detach()) as process:
                process.send(self._definition)

    def _died(self, param: str) -> InvalidRequest:
        if self._process is None or self._process.poll() is not None:
            return ConstraintNotAvailable("the process that tries constraints has ended; send the request again")
        limits = f"{CPU_SECONDS} s of CPU time, {SECONDS} s or {MAX_BYTES >> 20} MiB"
        return InvalidRequest(f"{param} takes more than {limits} to compile", param=param)
