"""The common part of the bodies of other APIs: fields of POST /generate, tools, thinking, and fields without effect.

A field that is not served is ignored if its value changes nothing about the answer, else it is refused by name. A
field with the value `null` counts as left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.constraints.constraint import CallTexts, Constraint, Lead, ToolCallForm
from service.decode.modes import KNOBS
from service.errors import InvalidRequest
from service.gateway.http.parse import check_model, constraint_of, explain, parse_generate
from service.gateway.http.protocol import PROMPTS, GenerateCommon, Json, StrictModel
from service.settings import nearest
from service.text.tools import TOOL_FORMATS, AnswerFormat, ToolUse
from service.text.tools.formats import REASONING_END, REASONING_GAP, REASONING_START
from service.wire import ModelCard

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


@dataclass(frozen=True, slots=True)
class BodyFields:
    """The fields of an API besides the fields of its own model.

    `passed`: fields that POST /generate parses. `no_ops`: field that is not served -> its values that change nothing.
    `hints`: labels and hints, which no answer depends on.
    """

    passed: frozenset[str]
    no_ops: Mapping[str, tuple[Any, ...]]
    hints: frozenset[str]

    def split(
        self, body: Mapping[str, Any], model: type[BaseModel], *, strict: bool = True
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields of the API's own model, and the fields that POST /generate parses. InvalidRequest for any other.

        `strict`: whether unknown fields are refused, else they are ignored.
        """
        names = {*model.model_fields, *self.passed}
        present = {name: value for name, value in body.items() if value is not None and name not in self.hints}
        for name, value in present.items():
            if name in names:
                continue
            if name not in self.no_ops:
                if strict:
                    raise InvalidRequest(f"{name[:80]!r} is not a field; {nearest(name, names)}", param=name)
            elif not any(_same(value, no_op) for no_op in self.no_ops[name]):
                allowed = " or ".join(json.dumps(no_op) for no_op in (*self.no_ops[name], None))
                received = json.dumps(value, ensure_ascii=False)[:80]
                message = f"{name} is {received}, which is not served; allowed is {allowed}"
                raise InvalidRequest(message, param=name)
        return (
            {name: value for name, value in present.items() if name in model.model_fields},
            {name: value for name, value in present.items() if name in self.passed},
        )


def _same(value: object, other: object) -> bool:
    """Equality of JSON values: false differs from 0, 0.0 equals 0."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


class LenientModel(BaseModel):
    """An object of a body whose other fields are ignored, such as `cache_control` and `citations`."""

    model_config = ConfigDict(strict=True, frozen=True)


class ApiRequest(StrictModel):
    """The fields of another API's request that POST /generate does not parse."""

    model: str = Field(description="as GET /v1/models names it")


_ApiRequest = TypeVar("_ApiRequest", bound=ApiRequest)


def parse_own(fields: Mapping[str, Any], schema: type[_ApiRequest], card: ModelCard) -> _ApiRequest:
    """The fields of an API's own model as a typed request. Raises InvalidRequest or UnknownModel with the reason."""
    for name, field in schema.model_fields.items():
        if field.is_required() and name not in fields:
            raise InvalidRequest(f"{name} is missing", param=name)
    try:
        request = schema.model_validate(fields)
    except ValidationError as error:
        raise explain(error.errors(include_url=False), schema) from None
    check_model(request.model, card)
    return request


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


def chat_fields(request: GenerateCommon, chat: ChatPrompt, card: ModelCard) -> tuple[Json, AnswerFormat]:
    """The fields of a chat's request, for `to_replica_request`, and how its answers are read.

    A constraint of the request holds after the thinking, and where no tool is called. InvalidRequest if the checkpoint
    cannot be given tools, cannot think, or cannot do without.
    """
    use, think, constraint = chat.tool_use, chat.think, constraint_of(request)
    thinking = _thinking(card, think, chat.think_param)
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
            constraint, lead=Lead(REASONING_START, REASONING_END, REASONING_GAP, in_prompt=thinking == "begun")
        )
    if card.thinking is None or not card.thinking.switch:
        think = None
    fields = {"messages": chat.messages, "constraint": constraint, "tools": tools, "think": think}
    return fields, AnswerFormat(tool_format, thinking)


def _thinking(card: ModelCard, think: bool | None, param: str) -> _Thinking:
    if card.thinking is None:
        if think:
            raise InvalidRequest("this checkpoint does not think, as far as its chat template says", param=param)
        return "no"
    if think is False and not card.thinking.switch:
        raise InvalidRequest("the chat template of this checkpoint cannot turn thinking off", param=param)
    if think is False:
        return "no"
    return "begun" if card.thinking.opened_by_prompt else "may"


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
