"""FastAPI's arguments for the OpenAI routes. `convert.py` parses the bodies, so their schema is added here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from service.gateway.http.models import Model
from service.gateway.http.openapi import errors
from service.gateway.http.shared_schema import asked
from service.gateway.openai.fields import FIELDS
from service.gateway.openai.schemas import MAX_TEMPERATURE, ChatRequest, CompletionRequest, OpenAiRequest
from service.gateway.openai.shapes import ChatCompletion, Completion, OpenAiErrorAnswer

_ANSWER = (
    "OpenAI's object; its choices also have `token_ids` and `stats`. With `stream`, server-sent events of OpenAI's "
    "chunks, then `[DONE]`. After a time-out finish_reason is `length`, and `timeout` in `stats`."
)
_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "completions": {"model": "demo", "prompt": "12+5=", "max_tokens": 32},
    "chat": {"model": "demo", "messages": [{"role": "user", "content": "12+5="}], "max_tokens": 64, "stream": True},
}


def completion_docs() -> dict[str, Any]:
    """POST /v1/completions."""
    asked = _asked(CompletionRequest, "completions")
    return _docs("Completions as OpenAI's client asks for them", Completion) | asked


def chat_docs() -> dict[str, Any]:
    """POST /v1/chat/completions."""
    asked = _asked(ChatRequest, "chat")
    return _docs("Chat completions as OpenAI's client asks for them", ChatCompletion) | asked


def model_docs() -> dict[str, Any]:
    """GET /v1/models/{id}."""
    responses = {200: {"model": Model}, **errors(401, 404, 422, 503, model=OpenAiErrorAnswer)}
    return {"summary": "The model by its name", "response_class": JSONResponse, "responses": responses}


def _docs(summary: str, answer: type[BaseModel]) -> dict[str, Any]:
    stream = {"text/event-stream": {"schema": {"description": _ANSWER}}}
    failed = errors(401, 404, 413, 422, 429, 503, 504, model=OpenAiErrorAnswer)
    return {
        "summary": summary,
        "response_class": JSONResponse,
        "responses": {200: {"model": answer, "description": _ANSWER, "content": stream}, **failed},
    }


def _asked(schema: type[OpenAiRequest], example: str) -> dict[str, Any]:
    return asked(schema, FIELDS.passed, MAX_TEMPERATURE, _EXAMPLES[example])
