"""Errors of the OpenAI routes: the one shape of ours, and OpenAI's `type` and field names in it."""

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

#: what replicas call a field -> what OpenAI does
_NAMES = {"max_new_tokens": "max_tokens", "prompt_token_ids": "prompt"}

Count = Callable[[MrpServeError], None]


def in_openai_terms(error: MrpServeError) -> MrpServeError:
    """A replica's error about a field, named as the client did."""
    message = error.message
    for ours, theirs in _NAMES.items():
        message = message.replace(ours, theirs)
    return type(error)(message, param=_NAMES.get(error.param or "", error.param), retry_after=error.retry_after)


def openai_error(error: MrpServeError, request_id: str) -> dict[str, Any]:
    """The error as these routes send it."""
    kind = "server_error" if error.status >= 500 else _TYPES.get(error.status, "invalid_request_error")
    detail = error_json(error, request_id)["error"]
    return {"error": {**detail, "type": kind}}


def error_writer(path: str) -> Write:
    """How errors on a path are written, those of the router included."""
    return openai_error if path.startswith("/v1/") else error_json


def openai_route(count: Count) -> type[APIRoute]:
    """A kind of route whose errors, those of its dependencies included, are counted and sent like this."""

    class OpenAiRoute(APIRoute):
        """Answers errors of ours itself; others are the application's."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """FastAPI's handler, its errors caught."""
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
