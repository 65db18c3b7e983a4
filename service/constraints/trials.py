"""Trials of constraints: each is first compiled in a separate process, which ends at the limits of time and memory.

The library's limits bound neither its time nor its memory: 100 characters of a schema can take minutes, 2 KB of a
grammar gigabytes. It cannot be stopped within a process. So `GrammarCompiler` tries a constraint here first.

`Trials` starts `python -m service.constraints.trials FD`, a process with the vocabulary and one thread. It forks for
each trial, and the kernel ends the fork at a limit.
"""

import contextlib
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from service.constraints.constraint import Constraint
from service.constraints.grammars import compile_grammar
from service.constraints.vocabulary import TokenVocabulary, VocabularyDefinition
from service.errors import ConstraintNotAvailable, InvalidRequest

#: The limits of a trial: CPU seconds, seconds, bytes. The largest sets of tools take a tenth of the first and the last.
CPU_SECONDS, SECONDS, MAX_BYTES = 2, 10, 128 * 1024 * 1024
#: The bytes of a stack: the library descends into schemas and rules by recursion. Unused stack takes no memory.
STACK = 256 * 1024 * 1024
#: the niceness of trials: the engine has priority
_NICE = 10


class Trial(NamedTuple):
    """The result of a trial."""

    size: int  # of the grammar in bytes
    constraint: Constraint  # the tried one without the parts that cannot be compiled


class Trials:
    """The trials of a vocabulary. Its process starts with the first one. Any thread may try."""

    def __init__(self, definition: VocabularyDefinition) -> None:
        self._definition = definition
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket

    def run(self, constraint: Constraint) -> Trial:
        """Compiles a constraint. Blocks up to `SECONDS`, at first longer.

        InvalidRequest if the constraint is wrong or exceeds a limit.
        """
        client_end, trial_end = socket.socketpair()
        with trial_end:
            self._ready()
            with self._lock:
                socket.send_fds(self._end, [b"."], [trial_end.fileno()])
        with Connection(client_end.detach()) as trial:
            try:
                trial.send(constraint)
                result: tuple[int, Constraint] | InvalidRequest = trial.recv()
            except (EOFError, OSError):
                raise self._died(constraint.param) from None
        if isinstance(result, InvalidRequest):
            raise result
        return Trial(*result)

    def close(self) -> None:
        with self._lock:
            if self._process is not None:
                self._end.close()
                self._process.wait()
                self._process = None

    def _ready(self) -> None:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            self._end, process_end = socket.socketpair()
            with process_end:
                command = [sys.executable, "-P", "-m", "service.constraints.trials", str(process_end.fileno())]
                self._process = subprocess.Popen(  # noqa: S603 - this program
                    command,
                    pass_fds=[process_end.fileno()],
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # the library may write parts of a grammar when it fails
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


# --- the process that forks ------------------------------------------------------------------------


def _serve(end: socket.socket) -> None:
    """Forks for each connection, until the end is closed."""
    with Connection(end.dup().detach()) as process:
        definition: VocabularyDefinition = process.recv()
    vocabulary = TokenVocabulary(*definition)
    os.nice(_NICE)
    gc.freeze()  # a collection would write to memory that forks share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        _, descriptors, _, _ = socket.recv_fds(end, 1, 1)
        if not descriptors:
            return
        if os.fork() == 0:
            _limit()
            end.close()
            threading.stack_size(STACK)
            thread = threading.Thread(target=_try, args=(Connection(descriptors[0]), vocabulary))
            thread.start()
            thread.join()
            os._exit(0)
        os.close(descriptors[0])


def _limit() -> None:
    """The kernel ends this process at the limits."""
    signal.alarm(SECONDS)
    address_space = _memory("VmSize") + STACK + MAX_BYTES
    for kind, limit in (
        (resource.RLIMIT_CPU, CPU_SECONDS), (resource.RLIMIT_AS, address_space), (resource.RLIMIT_CORE, 0),
    ):  # fmt: skip
        resource.setrlimit(kind, (limit, limit))


def _try(trial: Connection, vocabulary: TokenVocabulary) -> None:
    constraint: Constraint = trial.recv()
    before = _memory("RssAnon")
    try:
        grammar = compile_grammar(constraint, vocabulary)
        result: tuple[int, Constraint] | InvalidRequest = max(0, _memory("RssAnon") - before), grammar.constraint
        del grammar
    except InvalidRequest as error:
        result = error
    with contextlib.suppress(OSError):
        trial.send(result)


def _memory(size: str) -> int:
    """A size of this process in bytes. `size`: the name of the size in Linux's `status`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(size)) * 1024


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends it to all processes; this one ends with the engine's
    _serve(socket.socket(fileno=int(sys.argv[1])))
