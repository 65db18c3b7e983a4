"""The log lines of one process, as text or JSON, of the loggers `service.*` only.

The lines go to the process's stderr, or to the file of the setting `log_file`. Serve has its own loggers and files. A
line never holds a prompt, an answer or a key: data is logged as named fields (`extra`), and unexpected errors are
logged without their message, which may quote the request.
"""

from __future__ import annotations

import logging
import sys
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from service.errors import SettingsError
from service.settings import Settings
from service.telemetry.pipe_handler import PipeHandler

_ROOT = "service"

_LEVELS = logging.getLevelNamesMapping()


def install_logs(settings: Settings) -> None:
    """Sends the lines of this process to the place that the settings name. The last call counts.

    SettingsError if `log_file` cannot be written.
    """
    # Serve replaces sys.stderr by its own file. `sys.__stderr__` is the process's stderr.
    handler = file_handler(settings.log_file) if settings.log_file else logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(log_formatter(settings.log_format))
    logger = logging.getLogger(_ROOT)
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[settings.log_level.upper()])
    logger.propagate = False


def file_handler(path: Path) -> logging.Handler:
    """A handler that appends to a file, and reopens the file when it was rotated. Never blocks on a named pipe.

    SettingsError if the file cannot be written.
    """
    try:
        return PipeHandler(path) if path.is_fifo() else WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        message = f"log_file is {path}, which cannot be written: {error.strerror}"
        raise SettingsError(message, param="log_file") from None


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
    last = _JSON if kind == "json" else (structlog.dev.ConsoleRenderer(colors=False, timestamp_key="time"),)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
    )


def _without_private(_: Any, __: str, event: EventDict) -> EventDict:
    """Drops private fields, such as Ray's `_ray_timestamp_ns`."""
    return {name: value for name, value in event.items() if name[:1] != "_" or name in _STRUCTLOGS}


#: private fields of structlog, which structlog removes later
_STRUCTLOGS = frozenset({"_record", "_from_structlog"})

_JSON: tuple[Processor, ...] = (structlog.processors.EventRenamer("message"), structlog.processors.JSONRenderer())
