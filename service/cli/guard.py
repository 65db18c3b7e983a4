"""Runs a service in a process of its own, takes the signals for it, and leaves none of its processes behind.

The program forks. The child starts Ray and all else in a new session, and blocks the signals that end programs. Its
children inherit both. So a signal to every process, as of systemd or a terminal, reaches the program alone, and the
service drains. The two processes guard each other: whichever ends first, the other kills the whole session.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import NoReturn

from service.cli.processes import kill_session
from service.errors import MrpServeError

#: Orphans become children of the program, which reaps them. Not every process 1 of a container does.
_PR_SET_CHILD_SUBREAPER = 36
#: seconds for which further signals count as the first: `timeout` signals its child and then the group
_SAME_S = 0.5
_HOUR_S = 3600.0
#: seconds that killed processes may take to end
_KILL_S = 10.0


class Exit(IntEnum):
    """The exit status of the program. 2 is a usage error."""

    ENDED = 0  # by a signal
    REFUSED = 1  # it could not start
    LOST = 3  # a process that the service needs has ended


def listen(orders: socket.socket, stop: Callable[[], None]) -> None:
    """Calls `stop`, on another thread, when the parent orders the end. The parent's death ends the session at once."""

    def read() -> None:
        while orders.recv(1):
            stop()
        kill_session(os.getsid(0), _KILL_S)
        os._exit(Exit.LOST)

    threading.Thread(target=read, name="guard", daemon=True).start()


def guarded(serve: Callable[[socket.socket], int], patience_s: float) -> int:
    """Runs `serve` in another process, at most `patience_s` after a signal. Returns its status when all have ended.

    `serve` gets the socket of the parent's orders, which `listen` reads.
    """
    signals = {signal.SIGINT, signal.SIGTERM}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under `nohup`
        signals.add(signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals | {signal.SIGCHLD})
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair()
    if not (child := os.fork()):
        ours.close()
        _serve_in_child(serve, theirs)
    theirs.close()
    status = _wait(child, ours, signals, patience_s)
    if not kill_session(child, _KILL_S):
        say(f"some processes of session {child} do not end")
    _reap()
    return status


def _serve_in_child(serve: Callable[[socket.socket], int], orders: socket.socket) -> NoReturn:
    os.setsid()
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    status: int = Exit.REFUSED
    try:
        status = serve(orders)
    except MrpServeError as error:
        say(error.message)
    except BaseException:  # noqa: BLE001 - the interpreter would print it, and then wait for Ray's processes
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(status)


def _wait(child: int, order: socket.socket, signals: set[signal.Signals], patience_s: float) -> int:
    """The exit status. Returns when the child has ended, at a second signal, or `patience_s` after the first one."""
    signalled_at: float | None = None
    while True:
        wait_s = _HOUR_S if signalled_at is None else max(0.0, signalled_at + patience_s - time.monotonic())
        seen = signal.sigtimedwait(signals | {signal.SIGCHLD}, wait_s)
        if seen is None:
            if signalled_at is not None:
                say(f"the service did not end within {patience_s:g} s; it is killed")
                return Exit.ENDED
        elif seen.si_signo == signal.SIGCHLD:
            if (code := _reap().get(child)) is not None:
                if code >= 0 or signalled_at is not None:
                    return max(code, Exit.ENDED)
                say(f"the process that runs Ray was ended by {signal.Signals(-code).name}, so the service ends")
                return Exit.LOST
        elif signalled_at is None:
            signalled_at = time.monotonic()
            with suppress(OSError):
                order.send(b".")
        elif time.monotonic() > signalled_at + _SAME_S:
            say("the service is killed")
            return Exit.ENDED


def _reap() -> dict[int, int]:
    codes = {}
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return codes


def say(text: str) -> None:
    """Prints a line of the program on stderr, if its reader is there: the service also ends without one."""
    with suppress(OSError):
        print(f"mrp-serve: {text}", file=sys.stderr, flush=True)
