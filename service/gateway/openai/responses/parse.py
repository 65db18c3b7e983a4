"""Parses a body of POST /v1/responses: one `ReplicaRequest`, and the form of its answer.

Chat templates get the items of `input` as messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.errors import InvalidRequest
from service.gateway.http.api_requests import (
    PASSED,
    BodyFields,
    ChatPrompt,
    chat_fields,
    parse_own,
    parse_shared_of_chat,
)
from service.gateway.http.parse import RequestContext, to_replica_request
from service.gateway.openai.parse import think
from service.gateway.openai.protocol import MAX_TEMPERATURE
from service.gateway.openai.responses import protocol
from service.gateway.openai.responses.builder import ResponsesBuilder
from service.text.tools import Tool, ToolUse, assistant_message, parse_arguments, tool_message

_NO_OPS: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}

_HINTS = frozenset(
    {
        "context_management",
        "max_tool_calls",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "stream_options",
        "user",
    }
)

FIELDS = BodyFields(PASSED - {"response_format"}, _NO_OPS, _HINTS)


def parse_responses(body: Mapping[str, Any], context: RequestContext) -> ResponsesBuilder:
    """Parses a body. Raises InvalidRequest or UnknownModel with the reason."""
    _check_state(body)
    fields, shared = FIELDS.split(body, protocol.ResponsesRequest)
    request = parse_own(fields, protocol.ResponsesRequest, context.card)
    shared |= _form(request)
    if request.max_output_tokens is not None:
        shared["max_new_tokens"] = request.max_output_tokens
    common = parse_shared_of_chat(shared, context.card, MAX_TEMPERATURE)
    thinks, _ = think(request.reasoning.effort if request.reasoning else None, None)
    messages = for_template(request.instructions, request.input)
    chat = ChatPrompt(messages, _tool_use(request), thinks, "reasoning.effort")
    fields, answer_format = chat_fields(common, chat, context.card)
    replica_request = to_replica_request(common, context, stream=request.stream, **fields)
    return ResponsesBuilder(replica_request, context.card.name, request, answer_format)


def _check_state(body: Mapping[str, Any]) -> None:
    """Refuses references to a stored response."""
    if body.get("previous_response_id") is not None:
        raise InvalidRequest(
            "previous_response_id is given, and no response is stored; send the whole conversation as input",
            param="previous_response_id",
        )
    items = body.get("input")
    for index, item in enumerate(items if isinstance(items, list) else []):
        if isinstance(item, Mapping) and item.get("type") == "item_reference":
            raise InvalidRequest(
                f"input.{index} refers to a stored item, and none is stored; send the item itself",
                param=f"input.{index}",
            )


def _form(request: protocol.ResponsesRequest) -> dict[str, Any]:
    """The form of the answer as POST /generate names it."""
    form = request.text.format if request.text else None
    if form is None or form.type == "text":
        return {}
    if isinstance(form, protocol.SchemaFormat):
        schema = {"schema": form.schema_, "strict": form.strict}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": {"type": form.type}}


def _tool_use(request: protocol.ResponsesRequest) -> ToolUse | None:
    """The tools that the answer may call. None without tools. InvalidRequest if the fields do not fit each other."""
    tools = tuple(
        Tool(tool.name, tool.description, tool.parameters, bool(tool.strict), f"tools.{index}.parameters")
        for index, tool in enumerate(request.tools)
    )
    choice, parallel = request.tool_choice, request.parallel_tool_calls
    if isinstance(choice, protocol.FunctionChoice):
        return ToolUse(tools, "required", (choice.name,), parallel=False)
    if isinstance(choice, protocol.AllowedFunctions):
        return ToolUse(tools, choice.mode, tuple(tool.name for tool in choice.tools), parallel)
    return ToolUse(tools, choice, (), parallel) if tools or choice == "required" else None


# --- messages --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _AssistantTurn:
    """The assistant's items that follow each other: one message of thinking, text and calls."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)

    def pop(self) -> Iterator[dict[str, Any]]:
        """The message of these items, if there are any. They are gone then."""
        if self.texts or self.calls:
            yield assistant_message("\n".join(self.texts), self.calls, "\n".join(self.thoughts))
        self.texts, self.thoughts, self.calls = [], [], []


def for_template(instructions: str | None, items: Sequence[protocol.InputItem]) -> tuple[dict[str, Any], ...]:
    """The items as chat templates take them. InvalidRequest: no message, bad arguments, or a result of no call."""
    made: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    turn, called = _AssistantTurn(), dict[str, str]()
    for index, item in enumerate(items):
        match item:
            case protocol.ReasoningItem():
                turn.thoughts += [part.text for part in item.content or ()]
            case protocol.CallItem():
                called[item.call_id] = item.name
                turn.calls.append(
                    (item.call_id, item.name, parse_arguments(item.arguments, f"input.{index}.arguments"))
                )
            case protocol.MessageItem(role="assistant"):
                turn.texts.append(_text(item.content))
            case protocol.MessageItem():
                made += turn.pop()
                made.append(
                    {"role": "system" if item.role == "developer" else item.role, "content": _text(item.content)}
                )
            case protocol.ResultItem():
                made += turn.pop()
                if item.call_id not in called:
                    raise InvalidRequest(
                        f"input.{index}.call_id is {item.call_id[:80]!r}, no call before has this id; send the whole "
                        "conversation, since no response is stored",
                        param=f"input.{index}.call_id",
                    )
                made.append(tool_message(item.call_id, called[item.call_id], _text(item.output)))
    made += turn.pop()
    if not made:
        raise InvalidRequest("input has no message", param="input")
    return tuple(made)


def _text(parts: Sequence[protocol.ContentPart]) -> str:
    return "".join(part.text for part in parts)
