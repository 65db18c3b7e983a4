"""Errors of the OpenAI routes: the shape of this service's errors, with OpenAI's `type` and field names."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from service.errors import MrpServeError
from service.gateway.http.answers import error_json
from service.gateway.http.errors import Write, problem

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}

#: name of a field in this service -> its name in OpenAI's API
_NAMES = {"max_new_tokens": "max_tokens", "prompt_token_ids": "prompt"}

Count = Callable[[MrpServeError], None]


def in_openai_terms(error: MrpServeError) -> MrpServeError:
    """The error with the field's name that the client used."""
    message = error.message
    for ours, theirs in _NAMES.items():
        message = message.replace(ours, theirs)
    return type(error)(message, param=_NAMES.get(error.param or "", error.param), retry_after=error.retry_after)


def openai_error(error: MrpServeError, request_id: str) -> dict[str, Any]:
    """The body of an error of the OpenAI routes."""
    kind = "server_error" if error.status >= 500 else _TYPES.get(error.status, "invalid_request_error")
    detail = error_json(error, request_id)["error"]
    return {"error": {**detail, "type": kind}}


def error_writer(path: str) -> Write:
    """The function that writes the errors of a path, errors of the router included."""
    return openai_error if path.startswith("/v1/") else error_json


def openai_route(count: Count) -> type[APIRoute]:
    """A class of routes that count and write their errors, errors of dependencies included."""

    class OpenAiRoute(APIRoute):
        """Answers every MrpServeError itself. The application handles other errors."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """FastAPI's handler with its errors caught."""
            handle = super().get_route_handler()

            async def caught(request: Request) -> Response:
                try:
                    return await handle(request)
                except MrpServeError as error:
                    if request.method == "POST":
                        count(error)
                    return _answer(error, request.scope["request_id"])

            return caught

    return OpenAiRoute


def _answer(error: MrpServeError, request_id: str) -> JSONResponse:
    return problem(error, request_id, write=openai_error)
