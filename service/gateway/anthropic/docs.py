"""FastAPI's arguments for Anthropic's routes. `convert.py` parses the bodies, so their schema is added here."""

from __future__ import annotations

from typing import Any, Final

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from service.gateway.anthropic.fields import FIELDS
from service.gateway.anthropic.schemas import MAX_TEMPERATURE, CountRequest, MessagesRequest
from service.gateway.anthropic.shapes import AnthropicErrorAnswer, MessageAnswer, TokenCount
from service.gateway.http.openapi import errors
from service.gateway.http.shared_schema import asked

_ANSWER: Final = (
    "Anthropic's object, with `stats`. With `stream`, Anthropic's server-sent events, from `message_start` to "
    "`message_stop`. After a time-out stop_reason is `max_tokens`, and finish_reason `timeout` in `stats`."
)
_CHAT: Final = {"model": "demo", "messages": [{"role": "user", "content": "12+5="}]}


def message_docs() -> dict[str, Any]:
    """POST /v1/messages."""
    body = asked(MessagesRequest, FIELDS.passed, MAX_TEMPERATURE, {**_CHAT, "max_tokens": 64})
    answer = {"description": _ANSWER, "content": {"text/event-stream": {"schema": {"description": _ANSWER}}}}
    return _docs("Messages as Anthropic's client asks for them", MessageAnswer, answer) | body


def count_docs() -> dict[str, Any]:
    """POST /v1/messages/count_tokens."""
    body = asked(CountRequest, FIELDS.passed, MAX_TEMPERATURE, _CHAT)
    return _docs("The number of tokens of a prompt", TokenCount, {}) | body


def _docs(summary: str, answer: type[BaseModel], more: dict[str, Any]) -> dict[str, Any]:
    failed = errors(400, 401, 404, 413, 429, 503, 504, model=AnthropicErrorAnswer)
    return {
        "summary": summary,
        "response_class": JSONResponse,
        "responses": {200: {"model": answer, **more}, **failed},
    }
