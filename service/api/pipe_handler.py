"""Log lines to a named pipe, by a handler that never waits for whoever reads them.

A pipe is full when its reader stops, as `mrp-serve serve` does while its terminal is paused. Then lines are dropped.
The next line that finds room comes after one that says how many.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

_CLOSED = -1


class PipeHandler(logging.Handler):
    """Appends lines to the pipe at `path`. OSError if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        # Open for reading too, it needs no reader now, and its process survives a reader that is gone.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""  # of a line that the pipe has taken a part of
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the line, or counts it as dropped."""
        try:
            line = self._line(record)
            if self._wrote(self._what_was_dropped() + line):
                self._dropped = 0
            else:
                self._dropped += 1
        except Exception:  # noqa: BLE001 - the library's handlers do the same
            self.handleError(record)

    def close(self) -> None:
        """Says what was dropped if there is room for it, and closes the pipe."""
        self.acquire()
        try:
            if self._pipe != _CLOSED:
                self._wrote(self._what_was_dropped())
                os.close(self._pipe)
                self._pipe = _CLOSED
            super().close()
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

    def _wrote(self, content: bytes) -> bool:
        """Whether the pipe took lines, or a part of them; the rest comes before the next line."""
        self._rest = self._rest[self._put(self._rest) :]
        if self._rest:
            return False
        written = self._put(content)
        self._rest = content[written:] if written else b""
        return written > 0

    def _put(self, content: bytes) -> int:
        """How many bytes the pipe took: a short line as a whole or not at all."""
        try:
            return os.write(self._pipe, content)
        except BlockingIOError:
            return 0
