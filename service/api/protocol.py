"""The fields that the bodies of all APIs have, and the body of POST /generate.

A mode's knobs are the fields of its class. The engine checks ranges that depend on the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from service.constraints.constraint import MAX_CHOICES, MAX_GRAMMAR, MAX_REGEX
from service.decode.knobs import AUTO, Knob, KnobValue, knobs_in
from service.decode.modes import KNOBS, MODES
from service.engine.request import MAX_LOGIT_BIAS, MAX_SEED
from service.errors import InvalidRequest
from service.fair_queue import DEFAULT_PRIORITY, HIGHEST_PRIORITY, LOWEST_PRIORITY
from service.quality.schema import QualityName

Json = dict[str, Any]

PROMPTS = ("prompt", "prompt_token_ids", "messages")
MAX_STOPS = 16
MAX_BIASED = 1024
MAX_BAD_WORDS = 256
MAX_SALT = 256
MAX_CACHE_KEY = 512
#: the most answers of one request, over all its prompts
MAX_ANSWERS = 128
#: the most records of tokens (log-probabilities, alternatives, steps, traces) of all answers of one request: some 33 MB
MAX_RECORDS = 2**19
MAX_NEW_TOKENS = 2**31 - 1  # longer than any model; bounds the numbers in error messages

_Stops = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS, fail_fast=True)]


def _stops_of(value: object) -> object:
    """A list of stop texts. An empty text, as forms of clients send it, ends nothing and is left out."""
    texts = [value] if isinstance(value, str) else value
    return [text for text in texts if text != ""] if isinstance(texts, list) else texts


StopTexts = Annotated[_Stops, BeforeValidator(_stops_of, json_schema_input_type=str | list[str])]


def _or_auto(value: object, whole_number: ValidatorFunctionWrapHandler) -> object:
    if isinstance(value, str) and value != AUTO:
        raise PydanticCustomError("auto", "Input should be a whole number or 'auto'")
    return value if value == AUTO else whole_number(value)


def _typed(knob: Knob) -> Any:
    """A knob's type with its range for pydantic. The engine checks a range that ends at the block size.

    None means the default: the checkpoint's `mrp_steps`, else the mode's own.
    """
    if knob.choices:
        return Annotated[Literal[knob.choices], Field(description=knob.help)]
    value: Any = Annotated[knob.kind, Field(ge=knob.minimum, gt=knob.above, le=knob.maximum)]
    if knob.auto:
        value = Annotated[value, WrapValidator(_or_auto, json_schema_input_type=value | Literal["auto"])]
    return Annotated[value, Field(description=knob.help)]


class BodyModel(BaseModel):
    """An object of a body. A field with null counts as absent. `16.0` is a whole number, as JSON Schema says."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: object) -> object:
        """Fields that take any number read a whole one as it is."""
        if not isinstance(value, dict):
            return value
        return {name: whole_number(item) for name, item in value.items() if item is not None}


def whole_number(value: object) -> object:
    """A number such as 16.0 as a whole number, in a list, too. Other values stay."""
    if type(value) is float and value.is_integer():
        return int(value)
    return (
        [whole_number(item) for item in value] if isinstance(value, list) and float in set(map(type, value)) else value
    )


class StrictModel(BodyModel):
    """An object of a body that has no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LenientModel(BodyModel):
    """An object of a body whose other fields are ignored, such as `cache_control` and `citations`."""

    model_config = ConfigDict(strict=True, frozen=True)


class NamedModel(StrictModel):
    """A body that must name the model."""

    model: str = Field(description="as GET /v1/models names it")


class Message(StrictModel):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str


#: exactly one of the three prompts is there and not null, for the documentation
ONE_PROMPT: list[JsonValue] = [
    {"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in PROMPTS
]

#: the largest integer that a replica can be sent, apart from those in messages and tools
MAX_INTEGER = 2**63 - 1
#: the engine checks the upper bound, which depends on the model
TokenId = Annotated[int, Field(le=MAX_INTEGER), WithJsonSchema({"type": "integer", "minimum": 0})]


#: JSON has texts as keys
LogitBias = dict[
    Annotated[int, Field(strict=False, ge=0, le=MAX_INTEGER)],
    Annotated[float, Field(ge=-MAX_LOGIT_BIAS, le=MAX_LOGIT_BIAS)],
]
BadWord = Annotated[str, Field(min_length=1, max_length=256, pattern=r"\S")]


class JsonSchemaFormat(StrictModel):
    """A JSON schema as OpenAI's clients send it. `strict`: unsupported keywords are refused; else they are ignored."""

    name: Annotated[str, Field(max_length=64)] | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="default: any JSON object")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """The form of the answer, as OpenAI names it. `json_object`: any JSON object. `structural_tag`: as in vLLM."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = Field(None, description="with type json_schema only")
    format: dict[str, Any] | None = Field(None, description="with type structural_tag only: free text with tags")


Regex = Annotated[str, Field(min_length=1, max_length=MAX_REGEX)]
Choice = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)
]
GrammarText = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR)]


class QueueFields(StrictModel):
    """The fields of a request's way to an engine, in every API."""

    model_config = ConfigDict(allow_inf_nan=False)

    timeout_s: float | None = Field(None, gt=0, description="default and maximum: the server's limit")
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT)] | None = Field(
        None, description="share cached prompts only with requests of the same salt and API key"
    )
    prompt_cache_key: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_KEY)] | None = Field(
        None, description="a name for requests with a common beginning, e.g. a session: they go to the same replica"
    )
    priority: int = Field(
        DEFAULT_PRIORITY,
        ge=HIGHEST_PRIORITY,
        le=LOWEST_PRIORITY,
        description="priority in the queue; 0 is served first",
    )


if TYPE_CHECKING:
    _Knobs = StrictModel
else:
    _Knobs = create_model(
        "_Knobs", __base__=StrictModel, **{name: (_typed(knob) | None, None) for name, knob in KNOBS.items()}
    )


class DecodingFields(QueueFields, _Knobs):
    """The fields of decoding that every API has, a mode and its knobs among them. `parse.py` checks the knobs."""

    mode: Literal[tuple(MODES)] | None = Field(None, description="default: the server's")  # type: ignore[valid-type]
    quality: QualityName | None = Field(
        None,
        description="instead of a mode and its knobs, a preset of them that GET /v1/models lists. "
        "lossless: static's output; balanced: at most 1 point less accurate; fast: at most 5",
    )
    temperature: float = Field(0.0, ge=0, le=100, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0: off")
    min_p: float = Field(0.0, ge=0, le=1, description="only tokens at least `min_p` times as likely as the likeliest")
    seed: int | None = Field(None, ge=0, le=MAX_SEED, description="default: random; the answer contains it")
    repetition_penalty: float = Field(
        1.0, ge=0.01, le=100, description="divides the logits of tokens of prompt and answer; 1: off"
    )
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="subtracted for each occurrence in the answer")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="subtracted for tokens of the answer")
    logit_bias: LogitBias = Field({}, max_length=MAX_BIASED, description="token id -> number added to its logit")
    min_tokens: int = Field(0, ge=0, le=MAX_NEW_TOKENS, description="tokens before the first stop token or text")
    bad_words: Annotated[list[BadWord], Field(fail_fast=True)] = Field(
        [], max_length=MAX_BAD_WORDS, description="words that the answer does not contain"
    )
    stop: StopTexts | None = Field(None, description="one to 16 texts that end the answer; not returned")
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)] = Field(
        [], max_length=1024, description="ids that end the answer"
    )
    ignore_eos: bool = Field(False, description="continue after the checkpoint's end token")
    response_format: ResponseFormat | None = Field(None, description="the form of the answer, as OpenAI names it")
    regex: Regex | None = Field(None, description="a regular expression that matches the whole answer")
    choice: Choice | None = Field(None, description="the texts from which the answer is chosen")
    grammar: GrammarText | None = Field(None, description="a grammar of the answer, in Lark's or llama.cpp's form")
    return_trace: bool = Field(False, description="return the denoising history")

    @property
    def knobs(self) -> dict[str, KnobValue]:
        return {name: value for name in KNOBS if (value := getattr(self, name)) is not None}


class ApiBody(DecodingFields, NamedModel):
    """The fields of the APIs of other servers."""


class StepMapField(StrictModel):
    """The field of the APIs whose answers may have a step map."""

    return_step_map: bool = Field(
        False, description="return the number of each token's denoising step, and the token's log-probability there"
    )


def _one_plan() -> list[JsonValue]:
    """A mode with no knobs of other modes, or a quality without a mode, for the documentation."""
    null: JsonValue = {"type": "null"}
    plans: list[JsonValue] = [{"properties": dict.fromkeys(("mode", *KNOBS), null)}]
    for mode, made in MODES.items():
        unused = dict.fromkeys(("quality", *(KNOBS.keys() - knobs_in(made).keys())), null)
        plans.append({"properties": {"mode": {"enum": [mode, None]}, **unused}})
    return plans


class PromptBody(DecodingFields):
    """A prompt to be answered once. Exactly one of the three prompts must be given."""

    prompt: Annotated[str, Field(min_length=1)] | None = Field(None, description="text to be continued")
    prompt_token_ids: Annotated[list[TokenId], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="prompt as token ids"
    )
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = Field(None, description="a chat")
    max_new_tokens: int | None = Field(
        None,
        ge=1,
        le=MAX_NEW_TOKENS,
        description="at most the rest of the context after the prompt; default: the rest, up to the server's "
        "`default_max_tokens`",
    )
    max_tokens: int | None = Field(None, ge=1, le=MAX_NEW_TOKENS, description="as `max_new_tokens`, by OpenAI's name")

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        names = [name for name in PROMPTS if getattr(self, name) is not None]
        if len(names) != 1:
            received = " and ".join(names) or "none of them"
            raise InvalidRequest(
                f"{received} given, exactly one of {', '.join(PROMPTS)} is allowed", param=(names or PROMPTS)[-1]
            )
        return self

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.max_tokens and self.max_new_tokens and self.max_tokens != self.max_new_tokens:
            raise InvalidRequest(
                f"max_tokens is {self.max_tokens} and max_new_tokens is {self.max_new_tokens}: they are one field, "
                "send one of them",
                param="max_tokens",
            )
        return self

    @property
    def limit(self) -> int | None:
        """The most tokens of the answer, by either name. None: the server's default."""
        return self.max_new_tokens or self.max_tokens


class GenerateBody(PromptBody, StepMapField):
    """The body of POST /generate. Exactly one of the three prompts must be given."""

    model_config = ConfigDict(json_schema_extra={"oneOf": ONE_PROMPT, "anyOf": _one_plan()})

    model: str | None = Field(None, description="name of the served model, as in GET /v1/models")
    n: int = Field(1, ge=1, le=MAX_ANSWERS, description="answers to the prompt; answer i has the seed `seed` + i")
    stream: bool = Field(False, description="server-sent events, one per block")
    stream_steps: bool = Field(
        False, description="with `stream`: also an event for each decoding step, while its block is decoded"
    )

    @model_validator(mode="after")
    def _steps_are_streamed(self) -> Self:
        if self.stream_steps and not self.stream:
            raise InvalidRequest(
                "stream_steps is true and stream is false: steps are events of a stream, set stream to true",
                param="stream_steps",
            )
        return self
