"""The schema of OpenAI's whole answers with this service's fields, for the documentation.

`answers.py` builds plain dictionaries; tests compare them with these models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from service.gateway.http.answers import DecodedStats, ErrorDetail, TraceStep, Usage


class _Choice(BaseModel):
    index: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: dict[str, Any] | None
    token_ids: list[int]
    stats: DecodedStats
    constraint_met: bool | None = None
    trace: list[TraceStep] | None = None


class TextChoice(_Choice):
    """A choice of a completion."""

    text: str


class FunctionOfCall(BaseModel):
    """The function that is called. `arguments`: JSON as text, incomplete if the answer was cut."""

    name: str
    arguments: str


class ToolCallOfMessage(BaseModel):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionOfCall


class AssistantMessage(BaseModel):
    """The model's message. `content` is null if there is none beside calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallOfMessage] | None = None


class MessageChoice(_Choice):
    """A choice of a chat completion."""

    message: AssistantMessage


class _Whole(BaseModel):
    id: str
    created: int
    model: str
    usage: Usage


class Completion(_Whole):
    """The answer of POST /v1/completions."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class ChatCompletion(_Whole):
    """The answer of POST /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[MessageChoice]


class OpenAiErrorDetail(ErrorDetail):
    """What went wrong, with OpenAI's type of error."""

    type: str


class OpenAiErrorAnswer(BaseModel):
    """Every error of these routes."""

    error: OpenAiErrorDetail
