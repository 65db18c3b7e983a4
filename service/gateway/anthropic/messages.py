"""The messages of a chat as Anthropic writes them, calls of tools and their results among them, and what they mean.

Blocks are read leniently: marks such as `cache_control` and `citations` change nothing about an answer. Chat templates
get the messages as `text.tools` makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from service.errors import InvalidRequest
from service.text.tools import assistant_message, tool_message

#: what stands between the texts of two blocks
_BETWEEN: Final = "\n"


def _blocks_of(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class _Block(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class TextBlock(_Block):
    """A text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(_Block):
    """What the model thought before an earlier answer. Other fields, such as `signature`, are ignored."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(_Block):
    """Thinking that nobody can read. It is left out."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(_Block):
    """A call of a tool that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Texts = Annotated[
    list[TextBlock], Field(fail_fast=True), BeforeValidator(_blocks_of, json_schema_input_type=str | list[TextBlock])
]


class ToolResultBlock(_Block):
    """What a tool answered to a call. `is_error` changes nothing: the content tells."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = []


Block = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")
]
_OF_ROLE: Final = {
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_use": "assistant",
    "tool_result": "user",
}


class MessageParam(BaseModel):
    """One message."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[Block], Field(fail_fast=True), BeforeValidator(_blocks_of, json_schema_input_type=str | list[Block])
    ]


def text_of(texts: Sequence[TextBlock]) -> str:
    """The texts of blocks, joined by line ends."""
    return _BETWEEN.join(block.text for block in texts)


def for_template(system: Sequence[TextBlock], messages: Sequence[MessageParam]) -> tuple[dict[str, Any], ...]:
    """The messages as chat templates take them. The last message must not be the assistant's.

    InvalidRequest if it is, if a block is not of its message's role, or if a result has no call.
    """
    if messages[-1].role == "assistant":
        raise InvalidRequest(
            "the last message is the assistant's; an answer cannot be begun for this model, end with a user's message",
            param=f"messages.{len(messages) - 1}.role",
        )
    made = [{"role": "system", "content": text_of(system)}] if system else []
    called: dict[str, str] = {}
    for number, message in enumerate(messages):
        made.extend(_for_template(message, f"messages.{number}.content", called))
    return tuple(made)


def _for_template(message: MessageParam, param: str, called: dict[str, str]) -> Iterator[dict[str, Any]]:
    """One message, and before it the results of tools. `called`: id -> name of earlier calls; its own are added."""
    for number, block in enumerate(message.content):
        role = _OF_ROLE.get(block.type, message.role)
        if role != message.role:
            raise InvalidRequest(
                f"{param}.{number} is a block {block.type} of the role {message.role}, allowed is {role}",
                param=f"{param}.{number}",
            )
        if isinstance(block, ToolUseBlock):
            called[block.id] = block.name
        if isinstance(block, ToolResultBlock):
            if block.tool_use_id not in called:
                raise InvalidRequest(
                    f"{param}.{number}.tool_use_id is {block.tool_use_id[:80]!r}, no call before has this id",
                    param=f"{param}.{number}.tool_use_id",
                )
            yield tool_message(block.tool_use_id, called[block.tool_use_id], text_of(block.content))
    text = text_of([block for block in message.content if isinstance(block, TextBlock)])
    if message.role == "assistant":
        calls = [(block.id, block.name, block.input) for block in message.content if isinstance(block, ToolUseBlock)]
        thought = _BETWEEN.join(block.thinking for block in message.content if isinstance(block, ThinkingBlock))
        yield assistant_message(text, calls, thought)
    elif text or not any(isinstance(block, ToolResultBlock) for block in message.content):
        yield {"role": message.role, "content": text}
