"""The common part of the bodies of other APIs: fields of POST /generate, tools and thinking."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec.structs import replace
from pydantic import ConfigDict, Field, ValidationError

from service.api.fields import BodyFields, IgnoredFields
from service.api.parse import RequestContext, check_model, constraint_of, explain, parse_generate
from service.api.protocol import PROMPTS, BodyModel, GenerateCommon, Json, StrictModel
from service.api.translate import translated
from service.constraints.constraint import CallTexts, Constraint, Preamble, ToolCallForm
from service.decode.modes import KNOBS
from service.errors import InvalidRequest
from service.messages.replica_status import ModelCard
from service.text.tools import TOOL_FORMATS, AnswerFormat, ToolUse
from service.text.tools.formats import REASONING_END, REASONING_GAP, REASONING_START

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,128}$")]

#: a chat for POST /generate instead of the request's own, whose messages only its API knows
_ANY_CHAT = [{"role": "user", "content": ""}]

#: an answer's thinking, as in `AnswerFormat`
_Thinking = Literal["no", "may", "begun"]

#: fields that POST /generate parses under the same name; other APIs have their own for the rest
PASSED: Final = frozenset({*GenerateCommon.model_fields, *KNOBS, "mode", "quality"}) - {
    *PROMPTS,
    *("model", "max_new_tokens", "n", "stream", "stream_steps", "return_step_map"),
}


class LenientModel(BodyModel):
    """An object of a body whose other fields are ignored, such as `cache_control` and `citations`."""

    model_config = ConfigDict(strict=True, frozen=True)


class ApiRequest(StrictModel):
    """The fields of another API's request that POST /generate does not parse."""

    model: str = Field(description="as GET /v1/models names it")


_ApiRequest = TypeVar("_ApiRequest", bound=ApiRequest)


def parse_body(
    body: Mapping[str, Any], fields: BodyFields, schema: type[_ApiRequest], context: RequestContext
) -> tuple[_ApiRequest, dict[str, Any]]:
    """An API's own fields as a typed request, and the fields that POST /generate parses, which are not parsed yet.

    Fields that are not served are ignored, at any depth. Raises InvalidRequest or UnknownModel with the reason.
    """
    own_fields, shared = fields.split(translated(body, context.ignored), schema, context.ignored)
    return parse_own(own_fields, schema, context), shared


def parse_own(fields: Mapping[str, Any], schema: type[_ApiRequest], context: RequestContext) -> _ApiRequest:
    """The fields of an API's own model as a typed request. Raises InvalidRequest or UnknownModel with the reason."""
    for name, field in schema.model_fields.items():
        if field.is_required() and name not in fields:
            raise InvalidRequest(f"{name} is missing", param=name)
    try:
        request = _validated(fields, schema, context.ignored)
    except ValidationError as error:
        raise explain(error.errors(include_url=False), schema) from None
    check_model(request.model, context.card)
    return request


def _validated(fields: Mapping[str, Any], schema: type[_ApiRequest], ignored: IgnoredFields) -> _ApiRequest:
    """The validated fields. Objects in a body may have fields that are not served, unless `ignored` is strict."""
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        extra = [problem["loc"] for problem in problems if problem["type"] == "extra_forbidden"]
        if ignored.strict or not extra:
            raise
        request = schema.model_validate(fields, extra="ignore")
        for path in extra:
            ignored.add(".".join(part for part in path if isinstance(part, str)))
        return request


def with_types_served(
    body: Mapping[str, Any], name: str, served: Collection[str], ignored: IgnoredFields
) -> Mapping[str, Any]:
    """A body whose list `name` has no objects of other types than `served`, such as a tool of the type `web_search`.

    A strict request keeps them, to be refused.
    """
    objects = body.get(name)
    if ignored.strict or not isinstance(objects, list):
        return body
    remaining = []
    for item in objects:
        kind = item.get("type") if isinstance(item, Mapping) else None
        if isinstance(kind, str) and kind not in served:
            ignored.add(f"{name}.{kind}")
        else:
            remaining.append(item)
    return {**body, name: remaining}


def parse_shared(shared: Mapping[str, Any], card: ModelCard, max_temperature: float) -> GenerateCommon:
    """The fields that another API shares with POST /generate. InvalidRequest with the reason."""
    request = parse_generate(shared, card.default_mode)
    if request.temperature > max_temperature:
        raise InvalidRequest(
            f"temperature is {request.temperature:g}, allowed are 0 to {max_temperature:g}", param="temperature"
        )
    return request


# --- chats -----------------------------------------------------------------------------------------


def parse_shared_of_chat(shared: Mapping[str, Any], card: ModelCard, max_temperature: float) -> GenerateCommon:
    """As `parse_shared`, for a request whose prompt is a chat."""
    return parse_shared({**shared, "messages": _ANY_CHAT}, card, max_temperature)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat. `messages`: as chat templates take them. `think`: whether to think; None leaves it to the template.

    `think_param`: the field of the request that says whether to think, for errors.
    """

    messages: tuple[Mapping[str, Any], ...]
    tool_use: ToolUse | None = None
    think: bool | None = None
    think_param: str = "thinking"


def chat_fields(request: GenerateCommon, chat: ChatPrompt, context: RequestContext) -> tuple[Json, AnswerFormat]:
    """The fields of a chat's request, for `to_replica_request`, and how its answers are read.

    A constraint of the request holds after the thinking, and where no tool is called. A checkpoint that cannot think
    answers without. InvalidRequest if the checkpoint cannot be given tools, or cannot do without thinking.
    """
    card, use, think, constraint = context.card, chat.tool_use, chat.think, constraint_of(request)
    thinking = _thinking(chat, context)
    tool_format: str | None = None
    tools: tuple[Json, ...] = ()
    if use is not None and use.callable:
        if card.tool_format is None:
            raise InvalidRequest(f"tools are given, and {card.tools_problem}", param="tools")
        tool_format, tools = card.tool_format, tuple(tool.definition for tool in use.tools)
        constraint = _calls(use, tool_format, constraint)
        if request.ignore_eos:
            raise InvalidRequest(
                "ignore_eos is true, which tools do not allow: calls of tools end the answer", param="ignore_eos"
            )
    if constraint is not None and thinking != "no":
        constraint = replace(
            constraint, preamble=Preamble(REASONING_START, REASONING_END, REASONING_GAP, in_prompt=thinking == "begun")
        )
    if card.thinking is None or not card.thinking.switch:
        think = None
    fields = {"messages": chat.messages, "constraint": constraint, "tools": tools, "think": think}
    return fields, AnswerFormat(tool_format, thinking)


def _thinking(chat: ChatPrompt, context: RequestContext) -> _Thinking:
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


def _calls(use: ToolUse, name: str, content: Constraint | None) -> Constraint:
    form = TOOL_FORMATS[name]
    forms = [
        ToolCallForm(tool.name, form.head(tool.name), tool.schema, form.tail, tool.param, tool.strict)
        for tool in use.callable
    ]
    return Constraint.calls(
        CallTexts(form.opening, form.between, form.closing),
        forms,
        required=use.choice == "required",
        parallel=use.parallel,
        content=content,
    )
