"""The routes under /v1 that OpenAI's client calls, except the list of models, which the ingress serves."""

from typing import Final

from fastapi import APIRouter, Request, Response

from service.api.driver import IngressServices, JsonAnswer, locked, respond
from service.api.errors import OpenAiErrorAnswer
from service.api.models import Model, model_json
from service.api.openai import protocol
from service.api.openai.parse import parse_chat, parse_completion
from service.api.openai.responses.parse import parse_responses
from service.api.openai.responses.protocol import ResponseObject, ResponsesRequest
from service.api.openapi import API_ERRORS, STORY, errors, model_docs, route_docs
from service.api.parse import check_model

_COMPLETION_STREAM: Final = (
    "OpenAI's object; its choices also have `token_ids` and `stats`. With `stream`, server-sent events of OpenAI's "
    "chunks, then `[DONE]`. After a time-out finish_reason is `length`, and `timeout` in `stats`."
)
_RESPONSE_STREAM: Final = (
    "OpenAI's object, with `stats`. With `stream`, OpenAI's events, from `response.created` to `response.completed`, "
    "`response.incomplete` or `error`. Nothing is stored."
)
_COMPLETION: Final = {"model": "demo", "prompt": "def fibonacci(n):", "max_tokens": 32}
_CHAT: Final = {"model": "demo", "messages": [STORY], "max_tokens": 64, "stream": True}
_RESPONSE: Final = {"model": "demo", "input": "Tom has 5 apples, gets 3, loses 2.", "max_output_tokens": 64}


def openai_router(upstream: IngressServices) -> APIRouter:
    """The routes, to be mounted at the root."""
    router = APIRouter(prefix="/v1", route_class=locked(upstream.authorize))

    failed = errors(*API_ERRORS, model=OpenAiErrorAnswer)
    summary = "Completions as OpenAI's client asks for them"
    completion = route_docs(summary, protocol.CompletionAnswer, failed, _COMPLETION_STREAM)
    summary = "Chat completions as OpenAI's client asks for them"
    chat = route_docs(summary, protocol.ChatCompletion, failed, _COMPLETION_STREAM)
    summary = "Responses as OpenAI's client asks for them, without state"
    response = route_docs(summary, ResponseObject, failed, _RESPONSE_STREAM)

    @router.post("/completions", **completion, **model_docs(protocol.CompletionRequest, _COMPLETION))
    async def completions(request: Request) -> Response:
        return await respond(parse_completion, upstream, request)

    @router.post("/chat/completions", **chat, **model_docs(protocol.ChatRequest, _CHAT))
    async def chat_completions(request: Request) -> Response:
        return await respond(parse_chat, upstream, request)

    @router.post("/responses", **response, **model_docs(ResponsesRequest, _RESPONSE))
    async def responses(request: Request) -> Response:
        return await respond(parse_responses, upstream, request)

    by_name = route_docs("The model by its name", Model, errors(400, 401, 404, 503, model=OpenAiErrorAnswer))

    @router.get("/models/{model_id:path}", **by_name)
    async def model(model_id: str) -> Response:
        card = await upstream.card()
        check_model(model_id, card)
        return JsonAnswer(model_json(card, model_id))

    return router
