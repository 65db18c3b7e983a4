"""The process from which trials are forked: `python -m service.constraints.trial_process FD`, started by `trials.py`.

It has the vocabulary, and one thread. A trial's process ends by the kernel where it comes to a limit.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from service.constraints.constraint import Constraint
from service.constraints.grammars import compile_grammar
from service.constraints.trials import CPU_SECONDS, MAX_BYTES, SECONDS, STACK
from service.constraints.vocabulary import Definition, TokenVocabulary
from service.errors import InvalidRequest

#: the engine comes first
_NICE = 10


def _serve(end: socket.socket) -> None:
    """Forks for each connection that comes, until the end is closed."""
    with Connection(end.dup().detach()) as process:
        definition: Definition = process.recv()
    vocabulary = TokenVocabulary(*definition)
    os.nice(_NICE)
    gc.freeze()  # a collection would write to memory that forks share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
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
    most = _memory("VmSize") + STACK + MAX_BYTES
    for kind, limit in (
        (resource.RLIMIT_CPU, CPU_SECONDS), (resource.RLIMIT_AS, most), (resource.RLIMIT_CORE, 0),
    ):  # fmt: skip
        resource.setrlimit(kind, (limit, limit))


def _try(trial: Connection, vocabulary: TokenVocabulary) -> None:
    constraint: Constraint = trial.recv()
    before = _memory("RssAnon")
    try:
        grammar = compile_grammar(constraint, vocabulary)
        result: int | InvalidRequest = max(0, _memory("RssAnon") - before)
        del grammar
    except InvalidRequest as error:
        result = error
    with contextlib.suppress(OSError):
        trial.send(result)


def _memory(what: str) -> int:
    """A size of this process in bytes, by its name in Linux's `status`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) * 1024


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends it to all; this process ends with the engine's
    _serve(socket.socket(fileno=int(sys.argv[1])))
