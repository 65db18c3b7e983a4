"""The log lines of one process, as text or JSON, of the loggers `service.*` only.

The lines go to the process's stderr, or to the pipe of `mrp-serve serve`. A line never holds a prompt, an answer or a
key. Data is logged as named fields (`extra`), unexpected errors without their message, which may quote the request.
"""

import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from service.settings.settings import LOG_PIPE, Settings

_CLOSED = -1
#: private fields of structlog, which structlog removes later
_STRUCTLOGS = frozenset({"_record", "_from_structlog"})
#: seconds between two attempts to write to a full pipe while nothing else is logged
_AGAIN_S = 0.2


def install_logs(settings: Settings) -> None:
    """Sends the lines of this process to its stderr, or to the pipe of `mrp-serve serve`. The last call counts."""
    pipe = os.environ.get(LOG_PIPE)
    # Serve replaces sys.stderr by its own file. `sys.__stderr__` is the process's stderr.
    handler = PipeHandler(Path(pipe)) if pipe else logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(log_formatter(settings.log_format))
    logger = logging.getLogger("service")
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.setLevel(settings.log_level.upper())
    logger.propagate = False


def log_formatter(kind: str) -> logging.Formatter:
    """The formatter of lines: `text` for people, `json` for one object per line. Includes the fields of `extra`."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _without_private,
        structlog.processors.TimeStamper(fmt="iso", key="time"),
        structlog.processors.format_exc_info,
    ]
    last: list[Processor] = [structlog.dev.ConsoleRenderer(colors=False, timestamp_key="time")]
    if kind == "json":
        last = [structlog.processors.EventRenamer("message"), structlog.processors.JSONRenderer()]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
    )


def _without_private(_: Any, __: str, event: EventDict) -> EventDict:
    """Drops private fields, such as Ray's `_ray_timestamp_ns`."""
    return {name: value for name, value in event.items() if name[:1] != "_" or name in _STRUCTLOGS}


class PipeHandler(logging.Handler):
    """Appends lines to the pipe at `path`, and never waits: a full pipe drops lines, which a later line counts."""

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
        while self._watched:
            time.sleep(_AGAIN_S)
            self.acquire()
            try:
                self._watched = self._pipe != _CLOSED and not self._wrote(b"")
            finally:
                self.release()

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode("utf-8", "backslashreplace")

    def _wrote(self, line: bytes) -> bool:
        """Writes the rest of earlier lines, then the line. False if the pipe took nothing of the line."""
        self._rest = self._rest[self._write_some(self._rest) :]
        content = line
        if self._dropped:
            level = {"levelno": logging.WARNING, "levelname": "WARNING", "dropped": self._dropped}
            message = "log lines were dropped because they were not read in time"
            content = self._line(logging.makeLogRecord({"name": __name__, "msg": message, **level})) + line
        if self._rest or not content:
            return not self._rest
        written = self._write_some(content)
        if written:
            self._rest, self._dropped = content[written:], 0
        return written > 0

    def _write_some(self, content: bytes) -> int:
        """The number of bytes that the pipe took. It takes a short line as a whole or not at all."""
        try:
            return os.write(self._pipe, content)
        except BlockingIOError:
            return 0
