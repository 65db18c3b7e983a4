"""What becomes of an error that no one foresaw: the log gets where it was raised, the client where to look.

What such an error says is in neither: it may quote a prompt. Knows no HTTP.
"""

from __future__ import annotations

import logging
import traceback

from service.errors import MrpServeError

_log = logging.getLogger(__name__)


def unexpected_error(error: BaseException, request_id: str) -> MrpServeError:
    """Logs it under the request's id and gives what the client is told."""
    _log.error("request failed", extra={"request_id": request_id, "exception": without_message(error)})
    return MrpServeError("an unexpected error; the server's log has it under the request's id")


def without_message(error: BaseException) -> str:
    """An error's traceback, its causes included, as kinds and places."""
    parts: list[str] = []
    seen: set[int] = set()
    here: BaseException | None = error
    while here is not None and id(here) not in seen:
        seen.add(id(here))
        frames = "".join(traceback.format_list(traceback.extract_tb(here.__traceback__)))
        parts.append(f"Traceback (most recent call last):\n{frames}{type(here).__module__}.{type(here).__qualname__}")
        here = here.__cause__ or (None if here.__suppress_context__ else here.__context__)
    return "\n\nraised from:\n".join(parts)
