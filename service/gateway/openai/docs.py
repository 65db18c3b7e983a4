"""FastAPI's arguments for the OpenAI routes. `convert.py` parses the bodies, so their schema is added here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from service.gateway.http.models import Model
from service.gateway.http.openapi import errors
from service.gateway.http.schemas import REQUESTS
from service.gateway.openai.fields import PASSED
from service.gateway.openai.schemas import MAX_TEMPERATURE, ChatRequest, CompletionRequest, OpenAiRequest
from service.gateway.openai.shapes import ChatCompletion, Completion, OpenAiErrorAnswer
from service.quality.schema import QUALITIES

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
    content = {"application/json": {"schema": _schema(schema), "example": _EXAMPLES[example]}}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}}


@cache
def _schema(schema: type[OpenAiRequest]) -> dict[str, Any]:
    """OpenAI's own fields and those shared with POST /generate, of all modes, without references.

    The result is cached and must not be changed.
    """
    made = schema.model_json_schema()
    definitions = made.pop("$defs", {})
    for request in REQUESTS.values():
        shared = request.model_json_schema()
        definitions |= shared.get("$defs", {})
        made["properties"] |= {name: field for name, field in shared["properties"].items() if name in PASSED}
    made["properties"]["temperature"] |= {"maximum": MAX_TEMPERATURE}
    made["properties"]["mode"] = {"enum": list(REQUESTS), "description": "default: the server's"}
    made["properties"]["quality"] = {"enum": list(QUALITIES), "description": "instead of a mode and its knobs"}
    resolved: dict[str, Any] = _inlined(made, definitions)
    return resolved


def _inlined(value: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inlined(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return _inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(item, definitions) for name, item in value.items()}
