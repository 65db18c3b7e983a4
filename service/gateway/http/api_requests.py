"""What the bodies of the other APIs share: fields of POST /generate, tools and thinking, and fields without effect.

A field that is not served is ignored if its value changes nothing about the answer, else it is refused by name. A
field with the value `null` counts as left out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.constraints.constraint import CallTexts, Constraint, Lead, ToolCallForm
from service.decode.modes import KNOBS
from service.errors import InvalidRequest
from service.gateway.http.constraints import constraint_of
from service.gateway.http.parse import check_model, explain, parse_generate
from service.gateway.http.protocol import GenerateCommon, Json
from service.settings import nearest
from service.text.tools import TOOL_FORMATS, AnswerFormat, ToolUse
from service.text.tools.formats import BEGIN, END, GAP
from service.wire import ModelCard

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,128}$")]

#: a chat for POST /generate in the place of the request's own, whose messages only its API knows
_ANY_CHAT = [{"role": "user", "content": ""}]

#: an answer's thinking, as `AnswerFormat` says it
_Thinking = Literal["no", "may", "begun"]

#: fields that POST /generate parses under the same name
PASSED: frozenset[str] = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "response_format",
        "regex",
        "choice",
        "grammar",
        "timeout_s",
        "return_trace",
        "cache_salt",
        "priority",
        "prompt_cache_key",
        "mode",
        "quality",
        *KNOBS,
    }
)


@dataclass(frozen=True, slots=True)
class BodyFields:
    """The fields of an API beside its own.

    `passed`: those that POST /generate parses. `no_ops`: field that is not served -> its values that change nothing.
    `hints`: labels and hints, which no answer depends on.
    """

    passed: frozenset[str]
    no_ops: Mapping[str, tuple[Any, ...]]
    hints: frozenset[str]

    def split(
        self, body: Mapping[str, Any], own: Collection[str], *, strict: bool = True
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields that are in `own`, and those that POST /generate parses. InvalidRequest for any other.

        `strict`: whether unknown fields are refused, else they are ignored.
        """
        present = {name: value for name, value in body.items() if value is not None and name not in self.hints}
        for name, value in present.items():
            if name in own or name in self.passed:
                continue
            if name not in self.no_ops:
                if strict:
                    message = f"{name[:80]!r} is not a field; {nearest(name, {*own, *self.passed})}"
                    raise InvalidRequest(message, param=name)
            elif not any(_same(value, no_op) for no_op in self.no_ops[name]):
                raise InvalidRequest(_not_served(name, value, self.no_ops[name]), param=name)
        return _among(present, own), _among(present, self.passed)


def _among(body: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name in names}


def _same(value: object, other: object) -> bool:
    """Equality of JSON values: false differs from 0, 0.0 equals 0."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _not_served(name: str, value: object, no_ops: tuple[Any, ...]) -> str:
    allowed = " or ".join(json.dumps(no_op) for no_op in (*no_ops, None))
    return f"{name} is {json.dumps(value, ensure_ascii=False)[:80]}, which is not served; allowed is {allowed}"


class StrictModel(BaseModel):
    """An object of a body that has no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LenientModel(BaseModel):
    """An object of a body whose other fields are ignored, such as `cache_control` and `citations`."""

    model_config = ConfigDict(strict=True, frozen=True)


class ApiRequest(BaseModel):
    """The own fields of another API's request."""

    model: str


_ApiRequest = TypeVar("_ApiRequest", bound=ApiRequest)


def parse_own(own: Mapping[str, Any], schema: type[_ApiRequest], card: ModelCard) -> _ApiRequest:
    """An API's own fields as a typed request. Raises InvalidRequest or UnknownModel with the reason."""
    for name, field in schema.model_fields.items():
        if field.is_required() and name not in own:
            raise InvalidRequest(f"{name} is missing", param=name)
    try:
        request = schema.model_validate(own)
    except ValidationError as error:
        raise explain(error.errors(include_url=False)) from None
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
    use, think, constraint, called = chat.tool_use, chat.think, constraint_of(request), None
    thinking = _thinking(card, think, chat.think_param)
    if use is not None and use.callable:
        called = _format(card)
        constraint = _calls(use, called, constraint)
        if request.ignore_eos:
            raise InvalidRequest(
                "ignore_eos is true, which tools do not allow: calls of tools end the answer", param="ignore_eos"
            )
    if constraint is not None and thinking != "no":
        constraint = replace(constraint, lead=Lead(BEGIN, END, GAP, in_prompt=thinking == "begun"))
    shown = use.tools if use is not None and called is not None else ()
    if card.thinking is None or not card.thinking.switch:
        think = None
    tools = tuple(tool.definition for tool in shown)
    fields = {"messages": chat.messages, "constraint": constraint, "tools": tools, "think": think}
    return fields, AnswerFormat(called, thinking)


def _thinking(card: ModelCard, think: bool | None, param: str) -> _Thinking:
    if card.thinking is None:
        if think:
            raise InvalidRequest("this checkpoint does not think, as far as its chat template says", param=param)
        return "no"
    if think is False and not card.thinking.switch:
        raise InvalidRequest("the chat template of this checkpoint cannot turn thinking off", param=param)
    if think is False:
        return "no"
    return "begun" if card.thinking.begun else "may"


def _format(card: ModelCard) -> str:
    if card.tool_format is None:
        raise InvalidRequest(f"tools are given, and {card.tools_problem}", param="tools")
    return card.tool_format


def _calls(use: ToolUse, name: str, content: Constraint | None) -> Constraint:
    form = TOOL_FORMATS[name]
    forms = [ToolCallForm(tool.name, form.head(tool.name), tool.schema, form.tail) for tool in use.callable]
    return Constraint.calls(
        CallTexts(form.opening, form.between, form.closing),
        forms,
        required=use.choice == "required",
        parallel=use.parallel,
        content=content,
    )
