"""POST /v1/responses, whole or as OpenAI's typed events."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from service.gateway.http.driver import Api, respond
from service.gateway.http.errors import renamed
from service.gateway.http.openapi import body_docs, errors, route_docs
from service.gateway.http.routes import answering
from service.gateway.openai.errors import OpenAiErrorAnswer, openai_problem
from service.gateway.openai.protocol import MAX_TEMPERATURE
from service.gateway.openai.responses.builder import ResponsesBuilder
from service.gateway.openai.responses.parse import FIELDS, parse_responses
from service.gateway.openai.responses.protocol import ResponseObject, ResponsesRequest
from service.gateway.upstream import Upstream

_NAMES: Final = {"max_new_tokens": "max_output_tokens"}
_STREAM: Final = (
    "OpenAI's object, with `stats`. With `stream`, OpenAI's events, from `response.created` to `response.completed`, "
    "`response.incomplete` or `error`. Nothing is stored."
)
_EXAMPLE: Final = {"model": "demo", "input": "12+5=", "max_output_tokens": 64}

RESPONSES: Final = Api(parse_responses, ResponsesBuilder, lambda error, _: renamed(error, _NAMES))


def responses_router(upstream: Upstream) -> APIRouter:
    """The route, to be mounted at the root."""
    router = APIRouter(prefix="/v1", route_class=answering(upstream.authorize, upstream.count, openai_problem))

    @router.post("/responses", **_docs())
    async def responses(request: Request) -> Response:
        return await respond(RESPONSES, upstream, request)

    return router


def _docs() -> dict[str, Any]:
    failed = errors(401, 404, 413, 422, 429, 503, 504, model=OpenAiErrorAnswer)
    route = route_docs("Responses as OpenAI's client asks for them, without state", ResponseObject, failed, _STREAM)
    return route | body_docs(ResponsesRequest, FIELDS.passed, MAX_TEMPERATURE, _EXAMPLE)
