"""The errors of each route, in the shape of its API.

Errors of the OpenAI routes have OpenAI's `type` and field names. Errors of Anthropic's routes have Anthropic's shape
and types, with the code and field of this service's errors. An invalid request has the status 400 on both, as at OpenAI
and Anthropic: some clients repeat a request after 422. This service's own routes answer 422, as their clients expect.
The error of a prompt that does not fit has the code or the words by which agents know that they must shorten the
conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from fastapi.responses import JSONResponse
from typing_extensions import TypedDict

from service.errors import MrpServeError, PromptTooLong
from service.gateway.http.errors import ErrorDetail, Write, error_json, problem, renamed


def error_writer(path: str) -> Write:
    """The function that writes the errors of a path, errors of the router included."""
    if path.startswith("/v1/messages"):
        return anthropic_error
    return openai_error if path.startswith("/v1/") else error_json


def error_response(error: MrpServeError, request_id: str, path: str, headers: Mapping[str, str]) -> JSONResponse:
    """The response to an error of a path, in the shape of its API."""
    write = error_writer(path)
    if write is anthropic_error:
        headers = {**headers, "request-id": request_id}
        error = in_anthropic_terms(error) if error.status == 422 else error
    elif write is openai_error and error.status == 422:
        error = renamed(error, {})
        error.status = 400
    return problem(error, request_id, headers, write)


class TypedErrorDetail(ErrorDetail):
    """The error, with the API's type of error."""

    type: str


# --- OpenAI ----------------------------------------------------------------------------------------

_OPENAI_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}

#: OpenAI's code for a prompt that does not fit
_OPENAI_TOO_LONG: Final = "context_length_exceeded"

#: name of a field in this service -> its name in OpenAI's API
_OPENAI_NAMES: Final = {"max_new_tokens": "max_tokens", "prompt_token_ids": "prompt"}


class OpenAiErrorAnswer(TypedDict):
    """Every error of these routes."""

    error: TypedErrorDetail


def in_openai_terms(error: MrpServeError) -> MrpServeError:
    """The error with the field's name that the client used."""
    return renamed(error, _OPENAI_NAMES)


def openai_error(error: MrpServeError, request_id: str) -> OpenAiErrorAnswer:
    """The body of an error of the OpenAI routes."""
    kind = "server_error" if error.status >= 500 else _OPENAI_TYPES.get(error.status, "invalid_request_error")
    detail = error_json(error, request_id)["error"]
    if isinstance(error, PromptTooLong):
        detail["code"] = _OPENAI_TOO_LONG
    return {"error": {**detail, "type": kind}}


# --- Anthropic -------------------------------------------------------------------------------------

_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

#: name of a field in this service -> its name in Anthropic's API
_ANTHROPIC_NAMES: Final = {"max_new_tokens": "max_tokens"}
_TOO_LONG: Final = "prompt is too long: "


class AnthropicErrorAnswer(TypedDict):
    """Every error of these routes."""

    type: Literal["error"]
    error: TypedErrorDetail
    request_id: str


def in_anthropic_terms(error: MrpServeError) -> MrpServeError:
    """The error with the client's names of fields, and with Anthropic's status."""
    ours = renamed(error, _ANTHROPIC_NAMES)
    ours.status = 400 if error.status == 422 else error.status
    if isinstance(ours, PromptTooLong) and not ours.message.startswith(_TOO_LONG):
        ours.message = _TOO_LONG + ours.message
    return ours


def anthropic_error(error: MrpServeError, request_id: str) -> AnthropicErrorAnswer:
    """The body of an error of Anthropic's routes, and the data of a stream's event `error`."""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    detail = error_json(error, request_id)["error"]
    return {"type": "error", "error": {"type": kind, **detail}, "request_id": request_id}
