"""A sandbox for code that a model wrote. Linux only; it needs `unshare` (util-linux) and user namespaces, or root.

The code runs in a process with its own namespaces: it has no network, sees no other process, and reads the file system
but cannot write to it. A small `/tmp` in memory is its only writable folder. It has limits of time, memory, file size
and open files, no capabilities, and can start no process and open no socket. Its environment is empty. The kernel
enforces all of this, so the code cannot undo it (`sandboxed.py`). Without namespaces nothing is run.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from service.errors import SettingsError

_NAMESPACES = ("--user", "--map-root-user", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
_FIRST = Path(__file__).with_name("sandboxed.py")
#: what `sandboxed.py` writes to standard error when its process has given up its rights
_READY = b"ready"
#: seconds to start Python, beside the code's own time
_START_S = 5.0
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one run: seconds, bytes of memory and of a file, open files, bytes of output that are read."""

    seconds: float = 5.0
    memory: int = 1024 * _MIB
    file: int = 16 * _MIB
    open_files: int = 64
    output: int = 64 * 1024


def run(program: str, data: str = "", limits: Limits = Limits()) -> str | None:
    """The standard output of a Python program in the sandbox. None if it ended with an error or beyond a limit.

    `data`: its standard input. SettingsError if this machine cannot make the sandbox.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        raise SettingsError("the sandbox needs the program `unshare` of util-linux", param="run-code")
    numbers = map(str, (limits.seconds, limits.memory, limits.file, limits.open_files))
    inside = (sys.executable, "-I", str(_FIRST), program, *numbers, *sys.path)
    output = os.memfd_create("output")  # a file, so that the limit of a file holds for it
    try:
        done = subprocess.run(  # noqa: S603 - the program is fixed; the code is its argument
            [unshare, *_NAMESPACES, "--", *inside],
            input=data.encode(),
            stdout=output,
            stderr=subprocess.PIPE,
            timeout=limits.seconds + _START_S,
            env={"PATH": os.defpath},
            check=False,
        )
        if not done.stderr.startswith(_READY):
            words = " ".join(done.stderr.decode(errors="replace").split())
            raise SettingsError(f"this machine cannot make the sandbox: {words}", param="run-code")
        os.lseek(output, 0, os.SEEK_SET)
        text = os.read(output, limits.output).decode(errors="replace")
        return text if done.returncode == 0 else None
    except subprocess.TimeoutExpired:
        return None
    finally:
        os.close(output)
