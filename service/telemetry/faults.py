"""Unexpected errors: the log gets the place where the error was raised, the client gets the request's id.

Neither gets the error's message, which may quote a prompt.
"""

from __future__ import annotations

import logging

from service.errors import MrpServeError
from service.tracebacks import without_message

_log = logging.getLogger(__name__)


def unexpected_error(error: BaseException, request_id: str) -> MrpServeError:
    """Logs the error under the request's id. Returns the error for the client."""
    _log.error("request failed", extra={"request_id": request_id, "exception": without_message(error)})
    return MrpServeError("an unexpected error; the server's log has it under the request's id")
