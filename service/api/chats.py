"""The prompt of a chat in any API: its messages, tools and thinking, and the constraint that they lead to."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from msgspec.structs import replace

from service.api.parse import OutputParams, Prompt, RequestContext, constraint_of, to_replica_request
from service.api.protocol import DecodingFields, Json
from service.constraints.constraint import Constraint, Preamble, ToolCallForm
from service.errors import InvalidRequest
from service.messages.wire import ReplicaRequest
from service.text.tools import TOOL_FORMATS, AnswerFormat, ToolUse, tool_message
from service.text.tools.formats import REASONING_END, REASONING_GAP, REASONING_START


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat of any API."""

    messages: tuple[Mapping[str, Any], ...]  # as chat templates take them
    tool_use: ToolUse | None = None
    think: bool | None = None  # whether to think; None leaves it to the template
    think_param: str = "thinking"  # the field of the request that says whether to think, for errors


def chat_request(
    body: DecodingFields, chat: Chat, context: RequestContext, output: OutputParams
) -> tuple[ReplicaRequest, AnswerFormat]:
    """The request of a chat for a replica, and the format of its answers.

    A constraint of the request holds after the thinking, and where no tool is called. A checkpoint that cannot think
    answers without. InvalidRequest if the checkpoint cannot be given tools, or cannot do without thinking.
    """
    card, use, think, constraint = context.card, chat.tool_use, chat.think, constraint_of(body)
    thinking = _thinking(chat, context)
    tool_format: str | None = None
    tools, names = tuple[Json, ...](), dict[str, str]()
    if use is not None and use.callable:
        if card.tool_format is None:
            raise InvalidRequest(f"tools are given, and {card.tools_problem}", param="tools")
        tool_format, names = card.tool_format, use.model_names
        tools = tuple(dataclasses.replace(tool, name=names[tool.name]).definition for tool in use.tools)
        constraint = _calls(use, names, tool_format, constraint, strict=context.ignored.strict)
        if body.ignore_eos:
            raise InvalidRequest(
                "ignore_eos is true, which tools do not allow: calls of tools end the answer", param="ignore_eos"
            )
    if constraint is not None and thinking != "no":
        constraint = replace(
            constraint, preamble=Preamble(REASONING_START, REASONING_END, REASONING_GAP, in_prompt=thinking == "begun")
        )
    if card.thinking is None or not card.thinking.switch:
        think = None
    renamed = {name: made for name, made in names.items() if made != name}
    messages = tuple(_renamed(message, renamed) for message in chat.messages) if renamed else chat.messages
    prompt = Prompt(messages=messages, tools=tools, think=think, constraint=constraint)
    answer_format = AnswerFormat(tool_format, thinking, {made: name for name, made in renamed.items()})
    return to_replica_request(body, context, prompt, output), answer_format


def _renamed(message: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """A message of a call or of its result, with the model's names of tools. `names`: a tool's name -> the model's."""
    made = dict(message)
    if "name" in message:
        made["name"] = names.get(message["name"], message["name"])
    if calls := message.get("tool_calls"):
        functions = [call["function"] for call in calls]
        names_of_calls = (names.get(function["name"], function["name"]) for function in functions)
        made["tool_calls"] = [
            {**call, "function": {**function, "name": name}}
            for call, function, name in zip(calls, functions, names_of_calls, strict=True)
        ]
    return made


def tool_result(call_id: str, called: Mapping[str, str], content: str, param: str) -> Json:
    """The result of a call as chat templates take it. `called`: id -> name of the calls before.

    InvalidRequest if none of them has the id, which the field `param` gives.
    """
    if call_id not in called:
        raise InvalidRequest(
            f"{param} is {call_id[:80]!r}, no call before has this id; send the whole conversation, nothing is stored",
            param=param,
        )
    return tool_message(call_id, called[call_id], content)


def _thinking(chat: Chat, context: RequestContext) -> Literal["no", "may", "begun"]:
    thinking = context.card.thinking
    if thinking is None:
        if chat.think:
            context.ignored.add(chat.think_param)
        return "no"
    if chat.think is False and not thinking.switch:
        raise InvalidRequest("the chat template of this checkpoint cannot turn thinking off", param=chat.think_param)
    if chat.think is False:
        return "no"
    return "begun" if thinking.opened_by_prompt else "may"


def _calls(
    use: ToolUse, names: Mapping[str, str], format_: str, content: Constraint | None, *, strict: bool
) -> Constraint:
    form = TOOL_FORMATS[format_]
    forms = [
        ToolCallForm(tool.name, form.head(names[tool.name]), tool.schema, form.tail, tool.param, tool.strict or strict)
        for tool in use.callable
    ]
    constraint = Constraint.calls(
        forms,
        opening=form.opening,
        between=form.between if use.parallel else None,
        required=use.choice == "required",
        content=content,
    )
    types = (f"{tool.param}.type" for tool in use.callable if not tool.takes_objects)
    names_of_types = (".".join(part for part in path.split(".") if not part.isdecimal()) for path in types)
    return replace(constraint, ignored=tuple(dict.fromkeys((*constraint.ignored, *names_of_types))))
