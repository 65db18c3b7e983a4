"""The body of POST /v1/responses and its answer, with the fields that all APIs have and this service's own."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from service.api.answers import Decoded
from service.api.content import Text, past_arguments
from service.api.openai.protocol import ONE_ERROR, Effort, FunctionSpec, NamedFunction
from service.api.protocol import MAX_NEW_TOKENS, ApiBody, Json, JsonSchemaFormat, LenientModel, StrictModel
from service.messages.wire import TraceStep
from service.text.tools.calls import MAX_TOOLS

# --- the items of `input` --------------------------------------------------------------------------


class MessageItem(LenientModel):
    """A message. `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text = ""


class CallItem(LenientModel):
    """A call of a tool that the model made. `arguments`: a JSON object as text; of a cut text, its complete part."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: Annotated[dict[str, Any], BeforeValidator(past_arguments, json_schema_input_type=str)] = {}  # noqa: RUF012


class ResultItem(LenientModel):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Text = ""


class ThoughtPart(LenientModel):
    """A part of thinking."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(LenientModel):
    """The thinking before an earlier answer. Summaries are ignored."""

    type: Literal["reasoning"]
    content: Annotated[list[ThoughtPart], Field(fail_fast=True)] | None = None


def _with_type(item: object) -> object:
    """An item with its type."""
    return {**item, "type": "message"} if isinstance(item, Mapping) and item.get("type") is None else item


_Typed = MessageItem | CallItem | ResultItem | ReasoningItem
InputItem = Annotated[
    Annotated[_Typed, Field(discriminator="type")],
    BeforeValidator(_with_type, json_schema_input_type=_Typed),
]


# --- the body --------------------------------------------------------------------------------------


class FunctionTool(FunctionSpec):
    """A function that the model may call."""

    type: Literal["function"] = "function"


class FunctionChoice(NamedFunction):
    """The one tool that is called, or one of those that may be."""

    type: Literal["function"]


class AllowedFunctions(StrictModel):
    """Some of the tools. `mode`: whether one of them must be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Field(min_length=1, fail_fast=True)]


class PlainFormat(StrictModel):
    """Text, or any JSON object."""

    type: Literal["text", "json_object"]


class SchemaFormat(JsonSchemaFormat):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class TextOptions(LenientModel):
    """The form of the answer. Other fields, such as `verbosity`, are ignored."""

    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] = PlainFormat(type="text")


class Reasoning(LenientModel):
    """How much to think. Other fields, such as `summary`, are ignored."""

    effort: Effort | None = Field(None, description="none: no thinking; any other: thinking")


def _items_of(value: object) -> object:
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


class ResponsesRequest(ApiBody):
    """POST /v1/responses."""

    temperature: float = Field(0.0, ge=0, le=2, description="0 is greedy")
    input: Annotated[
        list[InputItem],
        Field(min_length=1, fail_fast=True),
        BeforeValidator(_items_of, json_schema_input_type=str | Annotated[list[InputItem], Field(min_length=1)]),
    ] = Field(description="a text, or the items of the whole conversation")
    instructions: str | None = Field(None, description="a system message before all others")
    max_output_tokens: int | None = Field(
        None,
        ge=1,
        le=MAX_NEW_TOKENS,
        description="may be more than the prompt leaves of the context; default: the rest of the context, up to the "
        "server's `default_max_tokens`",
    )
    text: TextOptions = TextOptions()
    tools: Annotated[list[FunctionTool], Field(fail_fast=True)] = Field([], max_length=MAX_TOOLS)
    tool_choice: Annotated[Literal["none", "auto", "required"] | FunctionChoice | AllowedFunctions, ONE_ERROR] = "auto"
    parallel_tool_calls: bool = True
    reasoning: Reasoning | None = None
    include: Annotated[list[str], Field(fail_fast=True)] = Field([], description="changes nothing")
    metadata: dict[str, str] = Field({}, description="is in the answer again")
    stream: bool = Field(False, description="server-sent events as OpenAI's client reads them")


# --- the answer ------------------------------------------------------------------------------------

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputItem(TypedDict):
    """An item of the output: a message, thinking, or a call. Each kind has some of the fields."""

    id: str
    type: Literal["message", "reasoning", "function_call"]
    status: ItemStatus
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[list[Json]]
    summary: NotRequired[list[Json]]
    call_id: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[str]


class ResponseUsage(TypedDict):
    """Token counts. Tokens of thinking are among `output_tokens`; they are not counted apart."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseEcho(TypedDict):
    """The fields of the request that the answer repeats."""

    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    prompt_cache_key: str | None
    reasoning: Json | None
    temperature: float
    text: Json
    tool_choice: str | Json
    tools: list[Json]
    top_p: float
    frequency_penalty: float
    presence_penalty: float


class ResponseState(ResponseEcho):
    """A response. Until it has ended, it has no usage."""

    id: str
    object: Literal["response"]
    created_at: float
    completed_at: float | None
    status: ItemStatus
    background: Literal[False]
    error: None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[OutputItem]
    previous_response_id: None
    service_tier: Literal["default"]
    store: Literal[False]
    top_logprobs: Literal[0]
    max_tool_calls: None
    safety_identifier: None
    user: None
    truncation: Literal["disabled"]
    usage: ResponseUsage | None


class ResponseObject(ResponseState, Decoded):
    """The answer of POST /v1/responses."""

    trace: NotRequired[Sequence[TraceStep]]
