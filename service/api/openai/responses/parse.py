"""Parses a body of POST /v1/responses: one `ReplicaRequest` with the items of `input` as messages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from service.api.chats import Chat, chat_request, tool_result
from service.api.content import check_last_turn
from service.api.fields import BodyFields
from service.api.openai.parse import FUNCTION, HINTS, NEUTRAL, REFUSED, think
from service.api.openai.responses import protocol
from service.api.openai.responses.builder import ResponsesBuilder
from service.api.pairs import with_paired_items
from service.api.parse import OutputParams, RequestContext, parse_body, with_form, with_types_served
from service.api.protocol import JsonSchemaFormat, ResponseFormat
from service.api.tool_fields import with_tools_served
from service.errors import InvalidRequest
from service.text.tools import Tool, ToolUse, assistant_message

_HINTS: Final = HINTS - {"metadata"} | {"context_management", "max_tool_calls", "stream_options"}

FIELDS = BodyFields(
    {**NEUTRAL, "top_logprobs": (0,)},
    {
        **REFUSED,
        "conversation": "input",
        "max_completion_tokens": "max_output_tokens",
        "max_new_tokens": "max_output_tokens",
        "max_tokens": "max_output_tokens",
        "n_predict": "max_output_tokens",
        "messages": "input",
        "prompt": "input",
    },
    _HINTS,
)

#: types of items; items of other types are skipped
_ITEMS: Final = frozenset({"message", "function_call", "function_call_output", "reasoning"})
#: those that are neither calls nor results; a message may have no type
_OTHERS: Final = frozenset({"", "message", "reasoning"})


def parse_responses(body: Mapping[str, Any], context: RequestContext) -> ResponsesBuilder:
    """Parses a body. Raises InvalidRequest or UnknownModel with the reason."""
    _check_state(body)
    check_last_turn(body.get("input"), "input")
    body = with_tools_served(body, FUNCTION, ("parameters",), context.ignored)
    if isinstance(items := body.get("input"), list):
        body = with_types_served({**body, "input": with_paired_items(items, _OTHERS)}, "input", _ITEMS, context.ignored)
    request = _with_form(parse_body(body, protocol.ResponsesRequest, FIELDS, context))
    thinks, _ = think(request.reasoning.effort if request.reasoning else None, None)
    messages = for_template(request.instructions, request.input)
    chat = Chat(messages, _tool_use(request), thinks, "reasoning.effort")
    output = OutputParams(request.max_output_tokens, stream=request.stream)
    replica_request, answer_format = chat_request(request, chat, context, output)
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
                f"input.{index} refers to a stored item, and nothing is stored; set `store: false` in the client, so "
                "that it sends the items themselves",
                param=f"input.{index}",
            )


def _with_form(request: protocol.ResponsesRequest) -> protocol.ResponsesRequest:
    form = request.text.format
    if form.type == "text":
        return request
    schema = form if isinstance(form, JsonSchemaFormat) else None
    return with_form(request, ResponseFormat(type=form.type, json_schema=schema), "text.format")


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
    """The items as chat templates take them. InvalidRequest: no message, or a result of no call."""
    made: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    turn, called = _AssistantTurn(), dict[str, str]()
    for index, item in enumerate(items):
        match item:
            case protocol.ReasoningItem():
                turn.thoughts += [part.text for part in item.content or ()]
            case protocol.CallItem():
                called[item.call_id] = item.name
                turn.calls.append((item.call_id, item.name, item.arguments))
            case protocol.MessageItem(role="assistant"):
                turn.texts.append(item.content)
            case protocol.MessageItem():
                made += turn.pop()
                made.append({"role": "system" if item.role == "developer" else item.role, "content": item.content})
            case protocol.ResultItem():
                made += turn.pop()
                made.append(tool_result(item.call_id, called, item.output, f"input.{index}.call_id"))
    made += turn.pop()
    if not made:
        raise InvalidRequest("input has no message", param="input")
    return tuple(made)
