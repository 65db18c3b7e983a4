"""The schema of a body of POST /v1/responses. POST /generate parses the fields that both APIs share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from service.gateway.http.schemas import MAX_NEW_TOKENS
from service.gateway.http.validation import OfApi
from service.gateway.openai.responses.items import Item
from service.gateway.openai.tools import MAX_TOOLS, Effort

_NAME = r"^[A-Za-z0-9_.\-]{1,128}$"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FunctionTool(_Strict):
    """A function that the model may call. `strict` changes nothing: arguments always fit `parameters`."""

    type: Literal["function"]
    name: str = Field(pattern=_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of an object; default: no arguments")
    strict: bool | None = None


class NamedTool(_Strict):
    """A function by its name."""

    type: Literal["function"]
    name: str


class AllowedTools(_Strict):
    """Some of the tools. `mode`: whether one of them must be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, fail_fast=True)]


class PlainFormat(_Strict):
    """Text, or any JSON object."""

    type: Literal["text", "json_object"]


class SchemaFormat(_Strict):
    """JSON that fits a schema. `strict` changes nothing, the schema always holds."""

    type: Literal["json_schema"]
    name: str | None = Field(None, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextOptions(BaseModel):
    """The form of the answer. Other fields, such as `verbosity`, are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = None


class Reasoning(BaseModel):
    """How much to think. Other fields, such as `summary`, are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    effort: Effort | None = Field(None, description="none: no thinking; any other: thinking")


def _items_of(value: object) -> object:
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


class ResponsesRequest(OfApi):
    """POST /v1/responses."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str = Field(description="as GET /v1/models names it")
    input: Annotated[
        list[Item],
        Field(min_length=1, fail_fast=True),
        BeforeValidator(_items_of, json_schema_input_type=str | Annotated[list[Item], Field(min_length=1)]),
    ] = Field(description="a text, or the items of the whole conversation")
    instructions: str | None = Field(None, description="a system message before all others")
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_NEW_TOKENS, description="default: 256")
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Field(fail_fast=True)] = Field([], max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools = "auto"
    parallel_tool_calls: bool = True
    reasoning: Reasoning | None = None
    include: Annotated[list[Literal["reasoning.encrypted_content"]], Field(fail_fast=True)] = Field(
        [], description="changes nothing"
    )
    metadata: dict[str, str] = Field({}, description="is in the answer again")
    stream: bool = Field(False, description="server-sent events as OpenAI's client reads them")
