"""The fields of Anthropic's bodies that are about tools and thinking, and what they mean."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.text.tools import Tool, ToolUse
from service.wire import ModelCard

MAX_TOOLS = 256
_NAME = r"^[A-Za-z0-9_.\-]{1,128}$"


class ToolParam(BaseModel):
    """A tool that the model may call. Fields that are not here, such as `cache_control` and `strict`, are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    type: Literal["custom"] | None = None
    name: str = Field(pattern=_NAME)
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="JSON schema of an object")


class _Choice(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class AnyChoice(_Choice):
    """Whether tools are called. any: one at least."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool = False


class ToolChoice(_Choice):
    """The one tool that is called."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool = False


class ThinkingParam(BaseModel):
    """Whether to think. Other fields, such as `budget_tokens`, are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    type: Literal["enabled", "adaptive", "disabled"]


Tools = Annotated[list[ToolParam], Field(max_length=MAX_TOOLS, fail_fast=True)]


def tool_use(tools: list[ToolParam], choice: AnyChoice | ToolChoice | None) -> ToolUse | None:
    """What the answer may call. None without tools. InvalidRequest if the fields do not fit each other."""
    given = tuple(Tool(tool.name, tool.description, tool.input_schema) for tool in tools)
    if isinstance(choice, ToolChoice):
        return ToolUse(given, "required", (choice.name,), parallel=False)
    if choice is None:
        return ToolUse(given) if given else None
    if choice.type == "any":
        return ToolUse(given, "required", parallel=not choice.disable_parallel_tool_use)
    return ToolUse(given, choice.type, parallel=not choice.disable_parallel_tool_use) if given else None


def think(wanted: ThinkingParam | None, card: ModelCard) -> bool | None:
    """Whether to think; None leaves it to the chat template.

    A request that says nothing wants no thinking. A checkpoint that does not think answers without.
    """
    if card.thinking is None:
        return None
    if wanted is None:
        return False if card.thinking.switch else None
    return wanted.type != "disabled"
