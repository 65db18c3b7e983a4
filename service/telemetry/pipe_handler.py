"""Log lines to a named pipe, by a handler that never waits for whoever reads them.

A pipe is full when its reader stops, as `mrp-serve serve` does while its terminal is paused. Then lines are dropped.
Once there is room again, a line says how many.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

_CLOSED = -1
#: how often a full pipe is tried while nothing else is logged
_AGAIN_S = 0.2


class PipeHandler(logging.Handler):
    """Appends lines to the pipe at `path`. OSError if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        # Open for reading too, it needs no reader now, and its process survives a reader that is gone.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""  # of a line that the pipe has taken a part of
        self._dropped = 0
        self._watched = False

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the line, or counts it as dropped."""
        try:
            if not self._wrote(self._line(record)):
                self._dropped += 1
            if (self._dropped or self._rest) and not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, name="log-pipe-watch", daemon=True).start()
        except Exception:  # noqa: BLE001 - the library's handlers do the same
            self.handleError(record)

    def close(self) -> None:
        """Says what was dropped if there is room for it, and closes the pipe."""
        self.acquire()
        try:
            if self._pipe != _CLOSED:
                self._wrote(b"")
                os.close(self._pipe)
                self._pipe = _CLOSED
            super().close()
        finally:
            self.release()

    def _watch(self) -> None:
        """Writes what is left as soon as there is room."""
        while self._watched:
            time.sleep(_AGAIN_S)
            self.acquire()
            try:
                self._watched = self._pipe != _CLOSED and not self._wrote(b"")
            finally:
                self.release()

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode("utf-8", "backslashreplace")

    def _what_was_dropped(self) -> bytes:
        """A line that says so; nothing if nothing was."""
        if not self._dropped:
            return b""
        level = {"levelno": logging.WARNING, "levelname": "WARNING"}
        said = {"name": __name__, "msg": "log lines were dropped, for nobody read them in time", **level}
        return self._line(logging.makeLogRecord({**said, "dropped": self._dropped}))

    def _wrote(self, line: bytes) -> bool:
        """Whether the pipe took the line, or a part of it, after all that was left before it."""
        self._rest = self._rest[self._put(self._rest) :]
        content = self._what_was_dropped() + line
        if self._rest or not content:
            return not self._rest
        written = self._put(content)
        if written:
            self._rest, self._dropped = content[written:], 0
        return written > 0

    def _put(self, content: bytes) -> int:
        """How many bytes the pipe took: a short line as a whole or not at all."""
        try:
            return os.write(self._pipe, content)
        except BlockingIOError:
            return 0
