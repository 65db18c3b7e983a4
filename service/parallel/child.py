"""Processes of this program that another one starts, with a pair of sockets between the two."""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def start_child(module: str, *arguments: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts `python -m module DESCRIPTOR *arguments`. Returns the process and this end of the pair.

    The end of either process closes its socket, which the other one notices at once.
    """
    here, there = socket.socketpair()
    with there:
        process = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-P", "-m", module, str(there.fileno()), *arguments],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )
    return process, here
