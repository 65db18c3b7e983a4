"""POST /tokenize and POST /detokenize, with vLLM's fields: a prompt as token ids, and token ids as text."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from service.api.driver import IngressServices, JsonAnswer, locked, parsed
from service.api.errors import show
from service.api.openai.chat import ReceivedMessage
from service.api.openai.parse import parse_chat, parse_completion
from service.api.openai.protocol import ToolSpec
from service.api.openapi import STORY, errors, model_docs, route_docs
from service.api.parse import RequestContext, validate_body
from service.api.protocol import Json, NamedModel, StrictModel, TokenId
from service.errors import InvalidRequest
from service.messages.wire import Encoded, ReplicaRequest

_ERRORS: Final = (401, 404, 413, 422, 429, 503, 504)
_PROMPTS: Final = ("prompt", "messages")
_Parse = Callable[[Mapping[str, Any], RequestContext], ReplicaRequest]


class TokenizeRequest(StrictModel):
    """POST /tokenize: a text, or a chat as /v1/chat/completions has it."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [name]} for name in _PROMPTS]})

    model: str | None = Field(None, description="default: the served model")
    prompt: Annotated[str, Field(min_length=1)] | None = None
    messages: Annotated[list[ReceivedMessage], Field(min_length=1)] | None = None
    tools: list[ToolSpec] = Field([], description="with `messages` only: functions that the prompt shows")


class DetokenizeRequest(NamedModel):
    """POST /detokenize."""

    model: str = Field("", description="default: the served model")
    tokens: Annotated[list[TokenId], Field(min_length=1, fail_fast=True)] = Field(description="token ids")


class TokenizeAnswer(TypedDict):
    """The token ids of a prompt, and their number. `token_strs`: always null."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: None


class DetokenizeAnswer(TypedDict):
    """The text of token ids, the names of control tokens included."""

    prompt: str


def tokens_router(upstream: IngressServices) -> APIRouter:
    """The routes, to be mounted at the root."""
    router = APIRouter(route_class=locked(upstream.authorize))
    failed = errors(*_ERRORS)
    tokenized = route_docs("The token ids of a text or a chat", TokenizeAnswer, failed)
    detokenized = route_docs("The text of token ids", DetokenizeAnswer, failed)

    async def encoded(parse: _Parse, request: Request) -> tuple[Encoded, RequestContext]:
        replica_request, context = await parsed(parse, upstream, request)
        charge = await upstream.admit(request, [replica_request])
        return await upstream.pipeline.encode(replica_request, charge), context

    @router.post("/tokenize", **tokenized, **model_docs(TokenizeRequest, {"messages": [STORY]}))
    async def tokenize(request: Request) -> Response:
        prompt, context = await encoded(parse_tokenize, request)
        tokens, longest = prompt.token_ids, context.card.max_model_len
        answer: TokenizeAnswer = {
            "count": len(tokens),
            "max_model_len": longest,
            "tokens": tokens,
            "token_strs": None,
        }
        return JsonAnswer(answer, headers=context.ignored.headers)

    @router.post("/detokenize", **detokenized, **model_docs(DetokenizeRequest, {"tokens": [625, 30]}))
    async def detokenize(request: Request) -> Response:
        prompt, context = await encoded(parse_detokenize, request)
        answer: DetokenizeAnswer = {"prompt": prompt.text}
        return JsonAnswer(answer, headers=context.ignored.headers)

    return router


def parse_tokenize(body: Mapping[str, Any], context: RequestContext) -> ReplicaRequest:
    """The request whose prompt is to be encoded. Raises InvalidRequest or UnknownModel with the reason."""
    names = [name for name in _PROMPTS if body.get(name) is not None]
    if len(names) != 1:
        received = " and ".join(names) or "none of them"
        raise InvalidRequest(f"{received} given, exactly one of {', '.join(_PROMPTS)} is allowed", param="prompt")
    if names == ["messages"]:
        return parse_chat(_completed(body, context), context).requests[0]
    if not isinstance(prompt := body["prompt"], str):
        raise InvalidRequest(f"prompt is {show(prompt)}, a text is expected", param="prompt")
    return parse_completion(_completed(body, context), context).requests[0]


def parse_detokenize(body: Mapping[str, Any], context: RequestContext) -> ReplicaRequest:
    """The request whose token ids are to be decoded. Raises InvalidRequest or UnknownModel with the reason."""
    tokens = validate_body({**body, "model": _model_of(body, context)}, DetokenizeRequest, context).tokens
    size = context.card.vocab_size
    for index, token in enumerate(tokens):
        if not 0 <= token < size:
            raise InvalidRequest(f"tokens.{index} is {token}, allowed are 0 to {size - 1}", param=f"tokens.{index}")
    return parse_completion(_completed({"prompt": tokens}, context), context).requests[0]


def _completed(body: Mapping[str, Any], context: RequestContext) -> Json:
    """The body of a request for an answer of one token."""
    return {**body, "model": _model_of(body, context), "max_tokens": 1}


def _model_of(body: Mapping[str, Any], context: RequestContext) -> Any:
    return context.card.name if body.get("model") is None else body["model"]
