"""The replicas' log lines on the terminal of `mrp-serve serve`, as they are.

Ray would show them with a prefix, among lines of its own. So replicas write to a named pipe, and this process copies
it to its stderr. A terminal that is paused stops this process; replicas go on and drop lines then
(`telemetry/pipe_handler.py`). Knows nothing of what a line holds.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

_END = b"\0\n"


class LogPipe:
    """`path` may be written to while the context is open."""

    def __enter__(self) -> LogPipe:
        self._folder = tempfile.TemporaryDirectory(prefix="mrp-serve-")
        self.path = Path(self._folder.name) / "log"
        os.mkfifo(self.path, 0o600)
        # Open for both, it is there before the first writer and does not end with the last.
        self._descriptor = os.open(self.path, os.O_RDWR)
        self._thread = threading.Thread(target=self._copy, name="log-pipe", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.write(self._descriptor, _END)
        self._thread.join()
        os.close(self._descriptor)
        self._folder.cleanup()

    def _copy(self) -> None:
        with open(self._descriptor, "rb", closefd=False) as lines:
            for line in lines:
                if line.endswith(_END):
                    return
                sys.stderr.write(line.decode("utf-8", "replace"))
                sys.stderr.flush()
