"""The schema of a whole response, for the documentation. `answers.py` builds plain dictionaries; tests compare them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from service.gateway.http.answers import DecodedStats, TraceStep


class OutputItem(BaseModel):
    """An item of the output: a message, thinking, or a call. Each kind has some of the fields."""

    id: str
    type: Literal["message", "reasoning", "function_call"]
    status: Literal["completed", "incomplete"]
    role: Literal["assistant"] | None = None
    content: list[dict[str, Any]] | None = None
    summary: list[dict[str, Any]] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class ResponseUsage(BaseModel):
    """Token counts. Tokens of thinking are among `output_tokens`; they are not counted apart."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class Response(BaseModel):
    """The answer of POST /v1/responses."""

    id: str
    object: Literal["response"]
    created_at: float
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[OutputItem]
    instructions: str | None
    max_output_tokens: int
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any] | None
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage
    stats: DecodedStats
    constraint_met: bool | None = None
    trace: list[TraceStep] | None = None
