"""A log handler for a named pipe that never waits for the reader of the pipe.

The pipe fills up if its reader stops, as `mrp-serve serve` does while its terminal is paused. Lines are then dropped.
Once the pipe has room again, a line says how many were dropped.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

_CLOSED = -1
#: seconds between two attempts to write to a full pipe while nothing else is logged
_AGAIN_S = 0.2


class PipeHandler(logging.Handler):
    """Appends lines to the pipe at `path`. OSError if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        # Opened for reading, too: opening then needs no reader, and a lost reader does not end this process.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""  # the rest of a line of which the pipe has taken a part
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
        except Exception:  # noqa: BLE001 - the handlers of `logging` do the same
            self.handleError(record)

    def close(self) -> None:
        """Writes how many lines were dropped, if the pipe has room, and closes the pipe."""
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
        """Writes what is left as soon as the pipe has room."""
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
        """A line with the number of dropped lines. Empty if none was dropped."""
        if not self._dropped:
            return b""
        level = {"levelno": logging.WARNING, "levelname": "WARNING"}
        fields = {"name": __name__, "msg": "log lines were dropped because they were not read in time", **level}
        return self._line(logging.makeLogRecord({**fields, "dropped": self._dropped}))

    def _wrote(self, line: bytes) -> bool:
        """Writes what is left of earlier lines, then the line. False if the pipe took nothing of the line."""
        self._rest = self._rest[self._put(self._rest) :]
        content = self._what_was_dropped() + line
        if self._rest or not content:
            return not self._rest
        written = self._put(content)
        if written:
            self._rest, self._dropped = content[written:], 0
        return written > 0

    def _put(self, content: bytes) -> int:
        """The number of bytes that the pipe took. It takes a short line as a whole or not at all."""
        try:
            return os.write(self._pipe, content)
        except BlockingIOError:
            return 0
