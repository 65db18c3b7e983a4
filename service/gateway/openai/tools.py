"""The fields of a chat that are about tools and thinking, as OpenAI and vLLM name them, and what they mean."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from service.errors import InvalidRequest
from service.text.tools import Tool, ToolUse

_NAME = r"^[A-Za-z0-9_.\-]{1,128}$"
MAX_TOOLS = 256

#: how much a model is to think; only `none` differs from the others
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FunctionSpec(_Strict):
    """A function. `strict` changes nothing: arguments always fit the schema `parameters`."""

    name: str = Field(pattern=_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of an object; default: no arguments")
    strict: bool | None = None


class ToolSpec(_Strict):
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(_Strict):
    """A function by its name."""

    name: str


class NamedTool(_Strict):
    """The one tool that is called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(_Strict):
    """Some of the tools. `mode`: whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, fail_fast=True)]


class AllowedChoice(_Strict):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _choice(value: object, known: ValidatorFunctionWrapHandler) -> object:
    """One error instead of one for each kind of choice."""
    try:
        return known(value)
    except ValidationError:
        message = "none, auto, required, a function by its name or allowed_tools is expected"
        raise PydanticCustomError("tool_choice", message) from None


ToolChoice = Annotated[Literal["none", "auto", "required"] | NamedTool | AllowedChoice, WrapValidator(_choice)]


class TemplateOptions(_Strict):
    """What vLLM's clients tell the chat template."""

    enable_thinking: bool | None = None


class WithTools(Protocol):
    """A request with these fields."""

    @property
    def tools(self) -> list[ToolSpec]:
        """The tools that may be called."""

    @property
    def tool_choice(self) -> ToolChoice:
        """Whether and which tools are called."""

    @property
    def parallel_tool_calls(self) -> bool:
        """Whether an answer may have several calls."""


def tool_use(request: WithTools) -> ToolUse | None:
    """What the answer may call. None without tools. InvalidRequest if the fields do not fit each other."""
    tools = tuple(
        Tool(spec.function.name, spec.function.description, spec.function.parameters) for spec in request.tools
    )
    choice, parallel = request.tool_choice, request.parallel_tool_calls
    if isinstance(choice, NamedTool):
        return ToolUse(tools, "required", (choice.function.name,), parallel=False)
    if isinstance(choice, AllowedChoice):
        names = tuple(tool.function.name for tool in choice.allowed_tools.tools)
        return ToolUse(tools, choice.allowed_tools.mode, names, parallel)
    return ToolUse(tools, choice, (), parallel) if tools or choice == "required" else None


def think(effort: Effort | None, options: TemplateOptions | None) -> tuple[bool | None, str]:
    """Whether to think, None leaves it to the chat template; and the field that says so."""
    wanted = None if effort is None else effort != "none"
    enabled = options.enable_thinking if options else None
    if wanted is None or enabled is None:
        return (enabled, "chat_template_kwargs") if wanted is None else (wanted, "reasoning_effort")
    if wanted != enabled:
        raise InvalidRequest(
            f"reasoning_effort is {effort!r} and chat_template_kwargs.enable_thinking {str(enabled).lower()}; "
            "give one of them",
            param="chat_template_kwargs",
        )
    return wanted, "reasoning_effort"
