"""The schema of Anthropic's answers with this service's fields, for the documentation.

`answers.py` builds plain dictionaries; tests compare them with these models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from service.gateway.http.answers import DecodedStats, ErrorDetail, TraceStep


class TextContent(BaseModel):
    """A block of text."""

    type: Literal["text"]
    text: str


class ThinkingContent(BaseModel):
    """What the model thought before. There is no signature."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseContent(BaseModel):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(BaseModel):
    """Token counts. The prompt's are `input_tokens` and, from the prefix cache, `cache_read_input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(BaseModel):
    """The answer of POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextContent | ThinkingContent | ToolUseContent]
    stop_reason: Literal["end_turn", "stop_sequence", "tool_use", "max_tokens", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: MessageUsage
    stats: DecodedStats
    constraint_met: bool | None = None
    trace: list[TraceStep] | None = None


class TokenCount(BaseModel):
    """The answer of POST /v1/messages/count_tokens."""

    input_tokens: int


class AnthropicErrorDetail(ErrorDetail):
    """What went wrong, with Anthropic's type of error."""

    type: str


class AnthropicErrorAnswer(BaseModel):
    """Every error of these routes."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str
