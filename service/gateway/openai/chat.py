"""The messages of a chat as OpenAI writes them, with calls of tools and their results.

Chat templates get the messages as `text.tools` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from service.errors import InvalidRequest
from service.gateway.http.protocol import StrictModel
from service.text.tools import assistant_message, parse_arguments, tool_message


def _text_of(content: object) -> object:
    """The text of a message. Parts of a text are joined."""
    if not isinstance(content, list):
        return content
    if not content:
        raise PydanticCustomError("content", "a text or a list of text parts is expected, none is given")
    texts = []
    for part in content:
        if not (isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            raise PydanticCustomError("content", "a text or a list of text parts is expected")
        texts.append(part["text"])
    return "".join(texts)


def _filled(message: object) -> object:
    """A message without its null fields. OpenAI's client dumps an answer with many of them."""
    filled = _received(message)
    if not isinstance(filled, Mapping):
        return filled
    return {name: value for name, value in filled.items() if value is not None and (value != [] or name == "content")}


def _received(value: object) -> object:
    """A part of a message without the fields that OpenAI's client adds to a received answer."""
    if not isinstance(value, Mapping):
        return value
    return {name: field for name, field in value.items() if name not in {"parsed", "parsed_arguments", "index"}}


class TextPart(BaseModel):
    """A text part of a message's content. Other fields are ignored."""

    type: Literal["text"]
    text: str


TextParts = Annotated[list[TextPart], Field(min_length=1)]
Text = Annotated[str, BeforeValidator(_text_of, json_schema_input_type=str | TextParts)]


class CalledFunction(StrictModel):
    """The function of a call. `arguments`: a JSON object as text."""

    name: str
    arguments: str


class MessageCall(StrictModel):
    """A call of a tool that the model made."""

    id: str
    type: Literal["function"] = "function"
    function: Annotated[CalledFunction, BeforeValidator(_received, json_schema_input_type=CalledFunction)]


ReceivedCall = Annotated[MessageCall, BeforeValidator(_received, json_schema_input_type=MessageCall)]


class ChatMessage(StrictModel):
    """One message, of any role."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | None = None
    tool_calls: Annotated[list[ReceivedCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _fields_of_its_role(self) -> ChatMessage:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise PydanticCustomError("content", "content is missing")
        owned = {"tool_calls": "assistant", "reasoning_content": "assistant", "tool_call_id": "tool", "name": "tool"}
        for name, role in owned.items():
            if getattr(self, name) is not None and self.role != role:
                raise PydanticCustomError("role", f"only messages of the role {role} have {name}")
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError("tool_call_id", "tool_call_id is missing, a message of the role tool has one")
        return self


class SpokenMessage(StrictModel):
    """A message to the model. The role `developer` is OpenAI's newer name for `system`."""

    role: Literal["system", "developer", "user"]
    content: Text


class AssistantTextMessage(StrictModel):
    """A text of the model. `reasoning_content`: its thinking before."""

    role: Literal["assistant"]
    content: Text
    tool_calls: Annotated[list[MessageCall], Field(max_length=0)] | None = None
    reasoning_content: str | None = None


class AssistantCallMessage(StrictModel):
    """A message of the model with calls of tools."""

    role: Literal["assistant"]
    content: Text | None = None
    tool_calls: Annotated[list[MessageCall], Field(min_length=1)]
    reasoning_content: str | None = None


class ToolMessage(StrictModel):
    """The result of a call. `name` changes nothing: the call has the tool's name."""

    role: Literal["tool"]
    content: Text
    tool_call_id: str
    name: str | None = None


#: the messages as the documentation shows them
_Documented = SpokenMessage | AssistantTextMessage | AssistantCallMessage | ToolMessage
ReceivedMessage = Annotated[ChatMessage, BeforeValidator(_filled, json_schema_input_type=_Documented)]


def for_template(messages: Sequence[ChatMessage]) -> tuple[dict[str, Any], ...]:
    """The messages as chat templates take them. InvalidRequest if arguments are no JSON, or a result has no call."""
    called: dict[str, str] = {}
    return tuple(_for_template(message, f"messages.{index}", called) for index, message in enumerate(messages))


def _for_template(message: ChatMessage, param: str, called: dict[str, str]) -> dict[str, Any]:
    """One message. `called`: id -> name of the calls before, to which its own are added."""
    content = message.content or ""
    if message.role == "assistant":
        calls = []
        for index, call in enumerate(message.tool_calls or ()):
            called[call.id] = call.function.name
            location = f"{param}.tool_calls.{index}.function.arguments"
            calls.append((call.id, call.function.name, parse_arguments(call.function.arguments, location)))
        return assistant_message(content, calls, message.reasoning_content or "")
    if message.role == "tool":
        call_id = message.tool_call_id or ""
        if call_id not in called:
            raise InvalidRequest(
                f"{param}.tool_call_id is {call_id[:80]!r}, which is the id of no call in the messages before",
                param=f"{param}.tool_call_id",
            )
        return tool_message(call_id, called[call_id], content)
    return {"role": "system" if message.role == "developer" else message.role, "content": content}
