"""Copies the replicas' log lines unchanged to the terminal of `mrp-serve serve`.

Ray would add a prefix and mix the lines with its own. Replicas therefore write to a named pipe, and this process
copies the pipe to its stderr. A paused terminal stops this process. Replicas then go on and drop lines
(`telemetry/logs.py`).
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import TracebackType

_END = b"\0\n"


class LogPipe:
    """A named pipe at `path`, open for writers in the context. `folder`: no other user may enter it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log"

    def __enter__(self) -> LogPipe:
        os.mkfifo(self.path, 0o600)
        # Opened for reading and writing: the pipe then exists before the first writer and stays after the last one.
        self._descriptor = os.open(self.path, os.O_RDWR)
        self._thread = threading.Thread(target=self._copy, name="log-pipe", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.write(self._descriptor, _END)
        self._thread.join()
        os.close(self._descriptor)
        self.path.unlink()

    def _copy(self) -> None:
        with open(self._descriptor, "rb", closefd=False) as lines:
            for line in lines:
                if line.endswith(_END):
                    return
                sys.stderr.write(line.decode("utf-8", "replace"))
                sys.stderr.flush()
