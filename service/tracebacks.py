"""Unexpected errors: the log gets the place, the client the request's id. Nobody gets a message with a prompt."""

import logging
import traceback

from service.errors import MrpServeError

_log = logging.getLogger(__name__)


def error_for_client(error: BaseException, request_id: str) -> MrpServeError:
    """The error that a client gets: one of this package as it is. Any other is logged under the request's id."""
    if isinstance(error, MrpServeError):
        return error
    _log.error("request failed", extra={"request_id": request_id, "exception": without_message(error)})
    return MrpServeError("an unexpected error; the server's log has it under the request's id")


def type_and_line(error: BaseException) -> str:
    """One line: `ZeroDivisionError in service.decode.drafts, line 93`."""
    kind, at = type(error), error.__traceback__
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if at is None:
        return name
    while at.tb_next is not None:
        at = at.tb_next
    return f"{name} in {at.tb_frame.f_globals.get('__name__', 'unnamed code')}, line {at.tb_lineno}"


def without_message(error: BaseException) -> str:
    """The traceback of an error and of its causes, without any message."""
    parts: list[str] = []
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        frames = "".join(traceback.format_list(traceback.extract_tb(cause.__traceback__)))
        parts.append(f"Traceback (most recent call last):\n{frames}{type(cause).__module__}.{type(cause).__qualname__}")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\n\nraised from:\n".join(parts)
