"""The bodies of Anthropic's routes and their answers, with the fields that all APIs have and this service's own."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from service.api.answers import Decoded
from service.api.content import joined, part_text, past_arguments
from service.api.protocol import MAX_NEW_TOKENS, ApiBody, Json, LenientModel, StopTexts, StrictModel
from service.messages.wire import TraceStep
from service.text.tools.calls import MAX_TOOLS

# --- messages --------------------------------------------------------------------------------------

#: the text between the texts of two blocks
BETWEEN: Final = "\n"
#: types of blocks that are not texts
_BLOCKS = frozenset({"thinking", "tool_result", "tool_use"})


def _blocks_of(content: object) -> object:
    """The blocks of a content. Images and documents leave a placeholder, blocks of other types are skipped.

    Thinking that nobody can read, `redacted_thinking`, is skipped, too.
    """
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [block for block in map(_block_of, content) if block] if isinstance(content, list) else content


def _block_of(block: object) -> object:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if (
        not isinstance(block, Mapping)
        or not isinstance(kind, str)
        or kind in _BLOCKS
        or (text := part_text(block)) is None
    ):
        return block
    return {"type": "text", "text": text} if text or kind == "text" else None


class TextBlock(LenientModel):
    """A text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(LenientModel):
    """The thinking before an earlier answer. Other fields, such as `signature`, are ignored."""

    type: Literal["thinking"]
    thinking: str


class ToolUseBlock(LenientModel):
    """A call of a tool that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[dict[str, Any], BeforeValidator(past_arguments, json_schema_input_type=dict[str, Any])] = {}  # noqa: RUF012


#: the texts of blocks are joined by line ends
Lines = Annotated[str, BeforeValidator(partial(joined, between=BETWEEN), json_schema_input_type=str | list[TextBlock])]


class ToolResultBlock(LenientModel):
    """The result of a call. `is_error` changes nothing: the content tells."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Lines = ""


MessageBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class MessageParam(StrictModel):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[MessageBlock],
        Field(fail_fast=True),
        BeforeValidator(_blocks_of, json_schema_input_type=str | list[MessageBlock]),
    ] = []  # noqa: RUF012


# --- tools and thinking ----------------------------------------------------------------------------


class ToolParam(LenientModel):
    """A tool that the model may call. Fields that are not here, such as `cache_control`, are ignored.

    `strict`: unsupported keywords of `input_schema` are refused, else ignored.
    """

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="JSON schema of an object")
    strict: bool | None = None


class AnyToolChoice(StrictModel):
    """Whether tools are called. any: one at least."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool = False


class NamedToolChoice(StrictModel):
    """The one tool that is called."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool = False


class ThinkingParam(LenientModel):
    """Whether to think. Other fields, such as `budget_tokens`, are ignored."""

    type: Literal["enabled", "adaptive", "disabled"]


# --- the bodies ------------------------------------------------------------------------------------


class OutputFormat(StrictModel):
    """The form of the answer: JSON that fits a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(LenientModel):
    """How the answer is made. Fields other than `format`, such as `effort`, are ignored."""

    format: OutputFormat | None = None


class PromptRequest(ApiBody):
    """POST /v1/messages/count_tokens: the fields that both routes have."""

    temperature: float = Field(0.0, ge=0, le=1, description="0 is greedy")
    messages: Annotated[list[MessageParam], Field(min_length=1, fail_fast=True)] = Field(
        description="the last one is not an assistant's"
    )
    system: Lines = Field("", description="a text or blocks of text")
    tools: Annotated[list[ToolParam], Field(fail_fast=True)] = Field(
        [], max_length=MAX_TOOLS, description="tools that the model may call"
    )
    tool_choice: Annotated[AnyToolChoice | NamedToolChoice, Field(discriminator="type")] = AnyToolChoice(type="auto")
    thinking: ThinkingParam | None = Field(None, description="default: no thinking, if the checkpoint can do without")
    output_config: OutputConfig | None = Field(None, description="`format`: JSON that fits a schema")
    output_format: OutputFormat | None = Field(None, description="older name of output_config.format")
    stop: StopTexts | None = Field(None, alias="stop_sequences", description="texts that end the answer; not returned")


class MessagesRequest(PromptRequest):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1, le=MAX_NEW_TOKENS, description="may be more than the model's length leaves")
    stream: bool = Field(False, description="server-sent events as Anthropic's client reads them")


# --- the answers -----------------------------------------------------------------------------------

StopReason = Literal["end_turn", "stop_sequence", "tool_use", "max_tokens", "model_context_window_exceeded"]


class ContentBlock(TypedDict):
    """A block of text, of thinking before the answer, or a call of a tool. Each kind has some of the fields.

    There is no signature of thinking.
    """

    type: Literal["text", "thinking", "tool_use"]
    text: NotRequired[str]
    thinking: NotRequired[str]
    signature: NotRequired[str]
    id: NotRequired[str]
    name: NotRequired[str]
    input: NotRequired[Json]


class MessageUsage(TypedDict):
    """Token counts. The prompt's are `input_tokens` and, from the prefix cache, `cache_read_input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageStop(TypedDict):
    """Why a message ends. `stop_sequence`: the text that ended it."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageExtras(Decoded):
    """The fields that this service adds."""

    trace: NotRequired[Sequence[TraceStep]]


class MessageHead(TypedDict):
    """The first fields of a message and of the first event of its stream."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str


class MessageAnswer(MessageHead, MessageStop, MessageExtras):
    """The answer of POST /v1/messages."""

    content: list[ContentBlock]
    usage: MessageUsage


class TokenCount(TypedDict):
    """The answer of POST /v1/messages/count_tokens."""

    input_tokens: int
