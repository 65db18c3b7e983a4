"""Parses a body of POST /v1/responses to a `Plan`: one `Work`, and the form of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from service.errors import InvalidRequest
from service.gateway.http.tools import with_tools
from service.gateway.http.validation import parse_own, shared_work
from service.gateway.openai.responses.fields import FIELDS
from service.gateway.openai.responses.items import for_template
from service.gateway.openai.responses.schemas import (
    AllowedTools,
    NamedTool,
    ResponsesRequest,
    SchemaFormat,
)
from service.gateway.openai.schemas import MAX_TEMPERATURE
from service.gateway.openai.tools import think
from service.text.tools import AnswerFormat, Tool, ToolUse
from service.wire import ModelCard, Work

#: stands for the messages until they are written for the chat template
_ANY_CHAT = [{"role": "user", "content": ""}]


@dataclass(frozen=True, slots=True)
class Plan:
    """One request. `reading`: how its answer is read."""

    work: Work
    request: ResponsesRequest
    reading: AnswerFormat


def plan_response(body: Mapping[str, Any], card: ModelCard, timeout_limit_s: float) -> Plan:
    """Parses a body. Raises InvalidRequest or UnknownModel with the reason."""
    _check_state(body)
    own, shared = FIELDS.split(body, ResponsesRequest.model_fields)
    request = parse_own(own, ResponsesRequest, card)
    shared |= _form(request)
    if request.max_output_tokens is not None:
        shared["max_new_tokens"] = request.max_output_tokens
    work = shared_work({**shared, "messages": _ANY_CHAT}, card, timeout_limit_s, MAX_TEMPERATURE)
    work = replace(work, messages=for_template(request.instructions, request.input))
    wanted, _ = think(request.reasoning.effort if request.reasoning else None, None)
    work, reading = with_tools(work, card, _tool_use(request), think=wanted, think_param="reasoning.effort")
    return Plan(work, request, reading)


def _check_state(body: Mapping[str, Any]) -> None:
    """Refuses what refers to a stored response."""
    if body.get("previous_response_id") is not None:
        raise InvalidRequest(
            "previous_response_id is given, and no response is stored; send the whole conversation as input",
            param="previous_response_id",
        )
    items = body.get("input")
    for number, item in enumerate(items if isinstance(items, list) else []):
        if isinstance(item, Mapping) and item.get("type") == "item_reference":
            raise InvalidRequest(
                f"input.{number} refers to a stored item, and none is stored; send the item itself",
                param=f"input.{number}",
            )


def _form(request: ResponsesRequest) -> dict[str, Any]:
    """The form of the answer as POST /generate names it."""
    form = request.text.format if request.text else None
    if form is None or form.type == "text":
        return {}
    if isinstance(form, SchemaFormat):
        return {"response_format": {"type": "json_schema", "json_schema": {"schema": form.schema_}}}
    return {"response_format": {"type": form.type}}


def _tool_use(request: ResponsesRequest) -> ToolUse | None:
    """What the answer may call. None without tools. InvalidRequest if the fields do not fit each other."""
    tools = tuple(Tool(tool.name, tool.description, tool.parameters) for tool in request.tools)
    choice, parallel = request.tool_choice, request.parallel_tool_calls
    if isinstance(choice, NamedTool):
        return ToolUse(tools, "required", (choice.name,), parallel=False)
    if isinstance(choice, AllowedTools):
        return ToolUse(tools, choice.mode, tuple(tool.name for tool in choice.tools), parallel)
    return ToolUse(tools, choice, (), parallel) if tools or choice == "required" else None
