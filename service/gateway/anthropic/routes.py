"""POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from service.gateway.anthropic.parse import FIELDS, parse_count, parse_messages
from service.gateway.anthropic.protocol import (
    MAX_TEMPERATURE,
    CountRequest,
    MessageAnswer,
    MessagesRequest,
    PromptRequest,
    TokenCount,
)
from service.gateway.errors import AnthropicErrorAnswer, anthropic_problem, in_anthropic_terms
from service.gateway.http.driver import Api, JsonAnswer, Upstream, answering, respond
from service.gateway.http.openapi import body_docs, errors, route_docs, shared_schema
from service.gateway.http.parse import parse_json

_STREAM: Final = (
    "Anthropic's object, with `stats`. With `stream`, Anthropic's server-sent events, from `message_start` to "
    "`message_stop`. After a time-out stop_reason is `max_tokens`, and finish_reason `timeout` in `stats`."
)
_CHAT: Final = {"model": "demo", "messages": [{"role": "user", "content": "12+5="}]}

MESSAGES: Final = Api(parse_messages, lambda error, _: in_anthropic_terms(error))
#: for clients that use betas
BETA_MESSAGES: Final = Api(partial(parse_messages, betas=True), MESSAGES.rename)


def anthropic_router(upstream: Upstream) -> APIRouter:
    """The routes, to be mounted at the root."""
    router = APIRouter(prefix="/v1", route_class=answering(upstream.authorize, upstream.count, anthropic_problem))
    answered = _docs("Messages as Anthropic's client asks for them", MessageAnswer, _STREAM)
    counted = _docs("The number of tokens of a prompt", TokenCount)

    @router.post("/messages", **answered, **_body(MessagesRequest, {**_CHAT, "max_tokens": 64}))
    async def messages(request: Request) -> Response:
        api = BETA_MESSAGES if "anthropic-beta" in request.headers else MESSAGES
        return _with_id(await respond(api, upstream, request), request)

    @router.post("/messages/count_tokens", **counted, **_body(CountRequest, _CHAT))
    async def count_tokens(request: Request) -> Response:
        body, context = parse_json(await request.body()), await upstream.context(request)
        replica_request = parse_count(body, context)
        charge = await upstream.admit(request, [replica_request])
        tokens: TokenCount = {"input_tokens": await upstream.count_tokens(replica_request, charge)}
        return _with_id(JsonAnswer(tokens), request)

    return router


def _with_id(response: Response, request: Request) -> Response:
    response.headers["request-id"] = request.scope["request_id"]
    return response


def _docs(summary: str, answer: type, stream: str = "") -> dict[str, Any]:
    failed = errors(400, 401, 404, 413, 429, 503, 504, model=AnthropicErrorAnswer)
    return route_docs(summary, answer, failed, stream)


def _body(body: type[PromptRequest], example: dict[str, Any]) -> dict[str, Any]:
    return body_docs(shared_schema(body, FIELDS.passed, MAX_TEMPERATURE), example)
