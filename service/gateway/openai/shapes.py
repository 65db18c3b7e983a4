"""OpenAI's whole answers as schema, with the fields of ours: for the documentation, as `http/answers.py`.

`answers.py` builds plain dictionaries of these shapes; tests hold them to it. Knows no HTTP.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from service.decode.params import Knob
from service.gateway.http.answers import AnswerStats, ErrorDetail, TraceStep, Usage


class ChoiceStats(AnswerStats):
    """How a choice was decoded, with the service's own finish reason."""

    finish_reason: Literal["stop", "length", "timeout"]
    mode: str
    knobs: dict[str, Knob]
    seed: int


class _Choice(BaseModel):
    index: int
    finish_reason: Literal["stop", "length"]
    logprobs: dict[str, Any] | None
    token_ids: list[int]
    stats: ChoiceStats
    trace: list[TraceStep] | None = None


class TextChoice(_Choice):
    """A choice of a completion."""

    text: str


class AssistantMessage(BaseModel):
    """What the model said."""

    role: Literal["assistant"]
    content: str
    refusal: None


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
    """What went wrong, with OpenAI's kind of error."""

    type: str


class OpenAiErrorAnswer(BaseModel):
    """Every error of these routes."""

    error: OpenAiErrorDetail
