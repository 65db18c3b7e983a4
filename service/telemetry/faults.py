"""What becomes of an error that no one foresaw: the log gets where it was raised, the client where to look.

What such an error says is in neither: it may quote a prompt. Knows no HTTP.
"""

from __future__ import annotations

import logging

from service.errors import MrpServeError
from service.tracebacks import without_message

_log = logging.getLogger(__name__)


def unexpected_error(error: BaseException, request_id: str) -> MrpServeError:
    """Logs it under the request's id and gives what the client is told."""
    _log.error("request failed", extra={"request_id": request_id, "exception": without_message(error)})
    return MrpServeError("an unexpected error; the server's log has it under the request's id")
