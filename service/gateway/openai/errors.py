"""Errors of the OpenAI routes: the shape of this service's errors, with OpenAI's `type` and field names."""

from __future__ import annotations

from fastapi.responses import JSONResponse
from typing_extensions import TypedDict

from service.errors import MrpServeError
from service.gateway.http.errors import ErrorDetail, error_json, problem, renamed

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}

#: name of a field in this service -> its name in OpenAI's API
_NAMES = {"max_new_tokens": "max_tokens", "prompt_token_ids": "prompt"}


class OpenAiErrorDetail(ErrorDetail):
    """What went wrong, with OpenAI's type of error."""

    type: str


class OpenAiErrorAnswer(TypedDict):
    """Every error of these routes."""

    error: OpenAiErrorDetail


def in_openai_terms(error: MrpServeError) -> MrpServeError:
    """The error with the field's name that the client used."""
    return renamed(error, _NAMES)


def openai_error(error: MrpServeError, request_id: str) -> OpenAiErrorAnswer:
    """The body of an error of the OpenAI routes."""
    kind = "server_error" if error.status >= 500 else _TYPES.get(error.status, "invalid_request_error")
    detail = error_json(error, request_id)["error"]
    return {"error": {**detail, "type": kind}}


def openai_problem(error: MrpServeError, request_id: str) -> JSONResponse:
    """The answer to a request of the OpenAI routes that failed."""
    return problem(error, request_id, write=openai_error)
