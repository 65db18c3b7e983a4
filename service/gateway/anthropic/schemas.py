"""The schemas of Anthropic's own fields. POST /generate parses the fields that both APIs share.

Blocks of contents are read leniently: marks such as `cache_control` and `citations` change nothing about an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from service.gateway.http.schemas import MAX_NEW_TOKENS, StopTexts
from service.gateway.http.validation import OfApi

#: Anthropic's limit; POST /generate allows higher temperatures
MAX_TEMPERATURE = 1

#: what stands between the texts of two blocks
_BETWEEN: Final = "\n"
#: blocks of earlier answers that are not part of a prompt
_LEFT_OUT: Final = frozenset({"thinking", "redacted_thinking"})


def _text_of(content: object) -> object:
    """The text of a content. Blocks of text are joined by a line end, thoughts are left out."""
    if not isinstance(content, list):
        return content
    return _BETWEEN.join(_text(block) for block in content if _kind(block) not in _LEFT_OUT)


def _kind(block: object) -> object:
    kind = block.get("type") if isinstance(block, Mapping) else None
    return kind if isinstance(kind, str) else None


def _text(block: object) -> str:
    if not (isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("text"), str)):
        raise PydanticCustomError("content", "a text or a list of text blocks is expected; no other block is served")
    text: str = block["text"]
    return text


class TextBlock(BaseModel):
    """A block of text. Other fields are ignored."""

    type: Literal["text"]
    text: str


Content = Annotated[str, BeforeValidator(_text_of, json_schema_input_type=str | list[TextBlock])]


class MessageParam(BaseModel):
    """One message."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    role: Literal["user", "assistant", "system"]
    content: Content


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
    messages: Annotated[list[MessageParam], Field(min_length=1)] = Field(
        description="the last one is not an assistant's"
    )
    system: Content | None = Field(None, description="a text or blocks of text")
    output_config: OutputConfig | None = Field(None, description="`format`: JSON that fits a schema")
    output_format: OutputFormat | None = Field(None, description="older name of output_config.format")


class MessagesRequest(Prompted):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1, le=MAX_NEW_TOKENS, description="may be more than the model's length leaves")
    stop_sequences: StopTexts | None = Field(None, description="texts that end the answer; not returned")
    stream: bool = Field(False, description="server-sent events as Anthropic's client reads them")


class CountRequest(Prompted):
    """POST /v1/messages/count_tokens."""
