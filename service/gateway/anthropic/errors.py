"""Errors of Anthropic's routes: Anthropic's shape and types, with the code and field of this service's errors.

An invalid request has the status 400 there, not 422. A prompt that does not fit begins with the words by which agents
know that they must shorten the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from fastapi.responses import JSONResponse
from typing_extensions import TypedDict

from service.errors import MrpServeError, PromptTooLong
from service.gateway.http.errors import ErrorDetail, error_json, problem, renamed

_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

#: name of a field in this service -> its name in Anthropic's API
_NAMES: Final = {"max_new_tokens": "max_tokens"}
_TOO_LONG: Final = "prompt is too long: "


class AnthropicErrorDetail(ErrorDetail):
    """What went wrong, with Anthropic's type of error."""

    type: str


class AnthropicErrorAnswer(TypedDict):
    """Every error of these routes."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


def in_anthropic_terms(error: MrpServeError) -> MrpServeError:
    """The error with the client's names of fields, and with Anthropic's status."""
    ours = renamed(error, _NAMES)
    ours.status = 400 if error.status == 422 else error.status
    if isinstance(ours, PromptTooLong) and not ours.message.startswith(_TOO_LONG):
        ours.message = _TOO_LONG + ours.message
    return ours


def anthropic_error(error: MrpServeError, request_id: str) -> AnthropicErrorAnswer:
    """The body of an error of Anthropic's routes, and the data of a stream's event `error`."""
    kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    detail = error_json(error, request_id)["error"]
    return {"type": "error", "error": {"type": kind, **detail}, "request_id": request_id}


def anthropic_problem(error: MrpServeError, request_id: str) -> JSONResponse:
    """The answer to a request of Anthropic's routes that failed."""
    return problem(in_anthropic_terms(error), request_id, {"request-id": request_id}, anthropic_error)
