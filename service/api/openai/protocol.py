"""The bodies of OpenAI's two routes and their answers, with the fields of all APIs and this service's own."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from service.api.answers import Decoded, Traced, Usage
from service.api.openai.chat import ReceivedMessage
from service.api.protocol import (
    MAX_ANSWERS,
    MAX_NEW_TOKENS,
    ApiBody,
    Json,
    StepMapField,
    StrictModel,
    TokenId,
    whole_number,
)
from service.text.tools.calls import MAX_TOOLS

#: the most log-probabilities per token
MAX_LIKELIEST = 20

_Text = Annotated[str, Field(min_length=1)]
_Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
_Texts = Annotated[list[_Text], Field(min_length=1, max_length=MAX_ANSWERS, fail_fast=True)]
_IdLists = Annotated[list[_Ids], Field(min_length=1, max_length=MAX_ANSWERS, fail_fast=True)]


def _listed(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    """The prompts of a completion, of which one may come alone. One error instead of one for each kind of prompts."""
    alone = isinstance(value, str) or (isinstance(value, list) and isinstance(next(iter(value), None), int | float))
    prompts = [value] if alone else value
    if isinstance(prompts, list) and len(prompts) > MAX_ANSWERS:
        raise PydanticCustomError("prompt", f"{len(prompts)} prompts are too many, allowed are {MAX_ANSWERS}")
    try:
        return validate([whole_number(prompt) for prompt in prompts] if isinstance(prompts, list) else prompts)
    except ValidationError:
        message = "a text, token ids, or a list of texts or of token ids is expected, none of them empty"
        raise PydanticCustomError("prompt", message) from None


#: how much a model is to think; only `none` differs from the others
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class FunctionSpec(StrictModel):
    """A function. `strict`: unsupported keywords of `parameters` are refused; else they are ignored."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of an object; default: no arguments")
    strict: bool | None = None


class ToolSpec(StrictModel):
    """A tool that the model may call. `type` may be left out, as in vLLM."""

    type: Literal["function"] = "function"
    function: FunctionSpec


class NamedFunction(StrictModel):
    """A function by its name."""

    name: str


class NamedTool(StrictModel):
    """The one tool that is called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(StrictModel):
    """Some of the tools. `mode`: whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, fail_fast=True)]


class AllowedChoice(StrictModel):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _any_tool_choice(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    """One error instead of one for each kind of choice."""
    try:
        return validate("required" if value == "any" else value)  # Mistral's name
    except ValidationError:
        message = "none, auto, required, a function by its name or allowed_tools is expected"
        raise PydanticCustomError("tool_choice", message) from None


ONE_ERROR = WrapValidator(_any_tool_choice)
ToolChoice = Annotated[Literal["none", "auto", "required"] | NamedTool | AllowedChoice, ONE_ERROR]


class TemplateOptions(StrictModel):
    """The options of vLLM's clients for the chat template."""

    enable_thinking: bool | None = None


class StreamOptions(StrictModel):
    """What a stream has. Load clients send vLLM's `continuous_usage_stats`, which has no effect."""

    include_usage: bool = Field(False, description="a last frame with the token counts; other frames have none")
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


class OpenAiRequest(StepMapField, ApiBody):
    """The fields that both routes have."""

    temperature: float = Field(0.0, ge=0, le=2, description="0 is greedy")
    n: int = Field(1, ge=1, le=MAX_ANSWERS, description="answers per prompt; answer i has the seed `seed` + i")
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=MAX_NEW_TOKENS,
        description="may be more than the prompt leaves of the context; default: 16 for completions; for chats the "
        "rest of the context, up to the server's `default_max_tokens`",
    )
    stream: bool = Field(False, description="server-sent events, one per block, then [DONE]")
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    @abstractmethod
    def alternatives(self) -> int | None:
        """Top log-probabilities per token, None for no log-probabilities."""


class CompletionRequest(OpenAiRequest):
    """POST /v1/completions."""

    prompt: Annotated[
        _Texts | _IdLists, WrapValidator(_listed, json_schema_input_type=_Text | _Ids | _Texts | _IdLists)
    ]
    echo: bool = Field(False, description="put the prompt before the answer; needs prompts that are texts")
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LIKELIEST, description="the number of likeliest tokens for each token"
    )

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class ChatRequest(OpenAiRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ReceivedMessage], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[ToolSpec], Field(fail_fast=True)] = Field(
        [], max_length=MAX_TOOLS, description="functions that the model may call"
    )
    tool_choice: ToolChoice = Field("auto", description="whether and which tools are called")
    parallel_tool_calls: bool = Field(True, description="whether an answer may have several calls")
    reasoning_effort: Effort | None = Field(
        None, description="none: no thinking; any other: thinking, where the chat template knows it"
    )
    chat_template_kwargs: TemplateOptions | None = Field(None, description="vLLM's way to turn thinking on and off")
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_NEW_TOKENS, description="newer name of max_tokens")
    logprobs: bool = Field(False, description="log-probabilities of the answer's tokens")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LIKELIEST, description="the number of likeliest tokens for each token; needs logprobs"
    )

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


# --- answers ---------------------------------------------------------------------------------------

FinishReasonName = Literal["stop", "length", "tool_calls"]


class ChoiceTokens(Traced):
    """The tokens of a choice, or of a part of it."""

    logprobs: Json | None
    token_ids: Sequence[int]


class ChoiceEnd(Decoded):
    """The end of a choice."""

    finish_reason: FinishReasonName


class WholeChoice(ChoiceTokens, ChoiceEnd):
    """The tokens and the end of a choice, on both routes."""


class TextChoice(WholeChoice):
    """A choice of a completion."""

    index: int
    text: str


class FunctionOfCall(TypedDict):
    """The function that is called. `arguments`: JSON as text, incomplete if the answer was cut."""

    name: str
    arguments: str


class ToolCallOfMessage(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionOfCall


class AssistantMessage(TypedDict):
    """The model's message. `content` is null if there is none beside calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCallOfMessage]]


class MessageChoice(WholeChoice):
    """A choice of a chat completion."""

    index: int
    message: AssistantMessage


class OpenAiUsage(Usage):
    """Token counts, with the tokens of the prompt that the prefix cache had."""

    prompt_tokens_details: dict[str, int]


class CompletionHead(TypedDict):
    """The first fields of the answers and the frames of both routes. `system_fingerprint`: this program's version."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"]


class CompletionAnswer(CompletionHead):
    """The answer of POST /v1/completions."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: OpenAiUsage


class ChatCompletion(CompletionHead):
    """The answer of POST /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[MessageChoice]
    usage: OpenAiUsage
