"""The routes under /v1 that OpenAI's client calls, except the list of models, which the ingress serves."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from service.gateway.http.driver import Api, JsonAnswer, respond
from service.gateway.http.models import Model, model_json
from service.gateway.http.openapi import body_docs, errors, route_docs
from service.gateway.http.parse import check_model
from service.gateway.http.routes import answering
from service.gateway.openai.builder import ChatBuilder, CompletionBuilder
from service.gateway.openai.errors import OpenAiErrorAnswer, in_openai_terms, openai_problem
from service.gateway.openai.parse import FIELDS, parse_chat, parse_completion
from service.gateway.openai.protocol import (
    MAX_TEMPERATURE,
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    OpenAiRequest,
)
from service.gateway.upstream import Upstream

_STREAM: Final = (
    "OpenAI's object; its choices also have `token_ids` and `stats`. With `stream`, server-sent events of OpenAI's "
    "chunks, then `[DONE]`. After a time-out finish_reason is `length`, and `timeout` in `stats`."
)
_COMPLETION: Final = {"model": "demo", "prompt": "12+5=", "max_tokens": 32}
_CHAT: Final = {
    "model": "demo",
    "messages": [{"role": "user", "content": "12+5="}],
    "max_tokens": 64,
    "stream": True,
}

COMPLETIONS: Final = Api(parse_completion, CompletionBuilder, lambda error, _: in_openai_terms(error))
CHAT: Final = Api(parse_chat, ChatBuilder, lambda error, _: in_openai_terms(error))


def openai_router(upstream: Upstream) -> APIRouter:
    """The routes, to be mounted at the root."""
    router = APIRouter(prefix="/v1", route_class=answering(upstream.authorize, upstream.count, openai_problem))

    @router.post("/completions", **_docs("Completions", Completion, CompletionRequest, _COMPLETION))
    async def completions(request: Request) -> Response:
        return await respond(COMPLETIONS, upstream, request)

    @router.post("/chat/completions", **_docs("Chat completions", ChatCompletion, ChatRequest, _CHAT))
    async def chat(request: Request) -> Response:
        return await respond(CHAT, upstream, request)

    failed = errors(401, 404, 422, 503, model=OpenAiErrorAnswer)

    @router.get("/models/{model_id:path}", **route_docs("The model by its name", Model, failed))
    async def model(model_id: str) -> Response:
        card = await upstream.card()
        check_model(model_id, card)
        return JsonAnswer(model_json(card))

    return router


def _docs(what: str, answer: type, body: type[OpenAiRequest], example: dict[str, Any]) -> dict[str, Any]:
    failed = errors(401, 404, 413, 422, 429, 503, 504, model=OpenAiErrorAnswer)
    route = route_docs(f"{what} as OpenAI's client asks for them", answer, failed, _STREAM)
    return route | body_docs(body, FIELDS.passed, MAX_TEMPERATURE, example)
