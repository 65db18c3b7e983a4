"""The schemas of Anthropic's own fields. POST /generate parses the fields that both APIs share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.gateway.anthropic.messages import MessageParam, Texts
from service.gateway.anthropic.tools import AnyChoice, ThinkingParam, ToolChoice, Tools
from service.gateway.http.schemas import MAX_NEW_TOKENS, StopTexts
from service.gateway.http.validation import OfApi

#: Anthropic's limit; POST /generate allows higher temperatures
MAX_TEMPERATURE = 1


class OutputFormat(BaseModel):
    """The form of the answer: JSON that fits a schema."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    """How the answer is made. Fields other than `format`, such as `effort`, are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    format: OutputFormat | None = None


class Prompted(OfApi):
    """The fields that both routes have."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str = Field(description="as GET /v1/models names it")
    messages: Annotated[list[MessageParam], Field(min_length=1, fail_fast=True)] = Field(
        description="the last one is not an assistant's"
    )
    system: Texts = Field([], description="a text or blocks of text")
    tools: Tools = Field([], description="tools that the model may call")
    tool_choice: Annotated[AnyChoice | ToolChoice, Field(discriminator="type")] | None = None
    thinking: ThinkingParam | None = Field(None, description="default: no thinking, if the checkpoint can do without")
    output_config: OutputConfig | None = Field(None, description="`format`: JSON that fits a schema")
    output_format: OutputFormat | None = Field(None, description="older name of output_config.format")


class MessagesRequest(Prompted):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1, le=MAX_NEW_TOKENS, description="may be more than the model's length leaves")
    stop_sequences: StopTexts | None = Field(None, description="texts that end the answer; not returned")
    stream: bool = Field(False, description="server-sent events as Anthropic's client reads them")


class CountRequest(Prompted):
    """POST /v1/messages/count_tokens."""
