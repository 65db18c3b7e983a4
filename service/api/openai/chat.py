"""The messages of a chat as OpenAI writes them, with calls of tools and results, and as chat templates take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from service.api.chats import tool_result
from service.api.content import Text, past_arguments
from service.api.protocol import LenientModel
from service.text.tools import assistant_message

#: the id of a call in the older form `function_call`, before the function's name
_OLDER: Final = "function_call:"


def _filled(message: object) -> object:
    """A message without its null fields, with calls of other kinds as calls of functions."""
    if not isinstance(message, Mapping):
        return message
    filled = {name: value for name, value in message.items() if value is not None}
    if isinstance(calls := filled.get("tool_calls"), list):
        filled["tool_calls"] = [_function_call(call) for call in calls]
    if isinstance(older := filled.get("function_call"), Mapping) and not filled.get("tool_calls"):
        filled["tool_calls"] = [{"id": f"{_OLDER}{older.get('name')}", "function": older}]
    if filled.get("role") == "function":
        filled |= {"role": "tool", "tool_call_id": f"{_OLDER}{filled.get('name')}"}
    return filled


def _function_call(call: object) -> object:
    """A call of a custom tool, or of another kind, as a call of a function. The tool's text is its one argument."""
    if not isinstance(call, Mapping) or not isinstance(kind := call.get("type"), str) or kind == "function":
        return call
    called = call.get(kind)
    fields = called if isinstance(called, Mapping) else {}
    name = fields.get("name")
    function = {"name": name if isinstance(name, str) else kind, "arguments": {"input": fields.get("input", "")}}
    return {"id": call.get("id"), "function": function}


class CalledFunction(LenientModel):
    """The function of a call. `arguments`: a JSON object as text. A text that was cut gives its complete part."""

    name: str
    arguments: Annotated[dict[str, Any], BeforeValidator(past_arguments, json_schema_input_type=str)] = {}  # noqa: RUF012


class MessageCall(LenientModel):
    """A call of a tool that the model made."""

    id: str
    function: CalledFunction


class ChatMessage(LenientModel):
    """One message. Further fields are ignored: clients send their histories as they got them.

    The role `developer` is OpenAI's newer name for `system`. `reasoning_content`: the model's thinking before, also
    named `reasoning`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"role": {"const": "tool"}}},
            "then": {"required": ["tool_call_id"], "properties": {"tool_call_id": {"type": "string"}}},
        }
    )

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text = ""
    tool_calls: Annotated[list[MessageCall], Field(fail_fast=True)] = []  # noqa: RUF012
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, validation_alias=AliasChoices("reasoning_content", "reasoning"))

    @model_validator(mode="after")
    def _result_of_a_call(self) -> ChatMessage:
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError("tool_call_id", "tool_call_id is missing, a message of the role tool has one")
        return self


ReceivedMessage = Annotated[ChatMessage, BeforeValidator(_filled, json_schema_input_type=ChatMessage)]


def for_template(messages: Sequence[ChatMessage]) -> tuple[dict[str, Any], ...]:
    """The messages as chat templates take them. InvalidRequest if a result has no call."""
    called: dict[str, str] = {}
    return tuple(_for_template(message, f"messages.{index}", called) for index, message in enumerate(messages))


def _for_template(message: ChatMessage, param: str, called: dict[str, str]) -> dict[str, Any]:
    """One message. `called`: id -> name of the calls before, to which its own are added."""
    if message.role == "assistant":
        called.update((call.id, call.function.name) for call in message.tool_calls)
        calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]
        return assistant_message(message.content, calls, message.reasoning_content or "")
    if message.role == "tool":
        return tool_result(message.tool_call_id or "", called, message.content, f"{param}.tool_call_id")
    return {"role": "system" if message.role == "developer" else message.role, "content": message.content}
