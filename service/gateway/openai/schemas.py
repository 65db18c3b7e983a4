"""The schemas of OpenAI's own fields of the two bodies. POST /generate parses the fields that both APIs share.

`convert.py` parses bodies with these schemas, `docs.py` documents them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from service.gateway.http.schemas import MAX_NEW_TOKENS
from service.gateway.http.validation import OfApi
from service.gateway.openai.messages import Message
from service.gateway.openai.tools import MAX_TOOLS, Effort, TemplateOptions, ToolChoice, ToolSpec

#: the most choices of one request, over all its prompts
MAX_CHOICES = 128

#: OpenAI's limit; POST /generate allows higher temperatures
MAX_TEMPERATURE = 2

#: the most log-probabilities per token
MAX_LIKELIEST = 20

_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA = {
    "anyOf": [
        _TEXT,
        {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_CHOICES},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_CHOICES},
    ]
}

Prompt = str | tuple[int, ...]


def prompts_of(value: object) -> tuple[Prompt, ...]:
    """The prompts of a completion: a text, ids, or a list of either."""
    items = [value] if _one(value) is not None else value
    prompts = [_one(item) for item in items] if isinstance(items, list) else []
    kinds = {type(prompt) for prompt in prompts}
    if not prompts or None in prompts or len(kinds) != 1:
        message = "a text, token ids, or a list of texts or of token ids is expected, none of them empty"
        raise PydanticCustomError("prompt", message)
    return tuple(prompt for prompt in prompts if prompt is not None)


def _one(value: object) -> Prompt | None:
    if isinstance(value, str):
        return value or None
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return tuple(value)
    return None


#: load clients send vLLM's `continuous_usage_stats` with `include_usage`
StreamOption = Literal["include_usage", "include_obfuscation", "continuous_usage_stats"]


class OpenAiRequest(OfApi):
    """The fields that both routes have."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str = Field(description="as GET /v1/models names it")
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="answers per prompt; answer i has the seed `seed` + i")
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_NEW_TOKENS, description="default: 16 for completions, 256 for chats"
    )
    stream: bool = Field(False, description="server-sent events, one per block, then [DONE]")
    stream_options: dict[StreamOption, bool] | None = Field(
        None, description="include_usage: a last frame with the token counts; other frames have none"
    )


class CompletionRequest(OpenAiRequest):
    """POST /v1/completions."""

    prompt: Annotated[
        tuple[Prompt, ...],
        PlainValidator(prompts_of, json_schema_input_type=Any),
        Field(json_schema_extra=_PROMPT_SCHEMA),
    ]
    echo: bool = Field(False, description="put the prompt before the answer; needs prompts that are texts")
    logprobs: int | None = Field(None, ge=0, le=MAX_LIKELIEST, description="so many of the likeliest for each token")


class ChatRequest(OpenAiRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[ToolSpec], Field(fail_fast=True)] = Field(
        [], max_length=MAX_TOOLS, description="functions that the model may call"
    )
    tool_choice: ToolChoice = Field("auto", description="whether and which tools are called")
    parallel_tool_calls: bool = Field(True, description="whether an answer may have several calls")
    reasoning_effort: Effort | None = Field(
        None, description="none: no thinking; any other: thinking, where the chat template knows it"
    )
    chat_template_kwargs: TemplateOptions | None = Field(None, description="vLLM's way to turn thinking on and off")
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_NEW_TOKENS, description="newer name of max_tokens")
    logprobs: bool = Field(False, description="log-probabilities of the answer's tokens")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LIKELIEST, description="so many of the likeliest for each token; needs logprobs"
    )
