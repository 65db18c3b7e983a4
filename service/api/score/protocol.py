"""The body of POST /v1/score and its answer."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from service.api.openai.protocol import OpenAiUsage
from service.api.protocol import ONE_PROMPT, Message, NamedModel, QueueFields, StrictModel, TokenId

MAX_ITEMS = 64
MAX_LABELS = 100
MAX_LIKELIEST = 20


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Labels = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(min_length=1, max_length=MAX_LABELS, fail_fast=True),
    BeforeValidator(_listed),
]
LabelIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LABELS, fail_fast=True)]
Mark = Annotated[str, Field(min_length=1, max_length=64)]


class ScoreQuestion(StrictModel):
    """The labels and the mark of positions: of an item, or of all items that have none themselves."""

    labels: Labels | None = Field(None, description="texts of one token each")
    label_token_ids: LabelIds | None = Field(None, description="the same as token ids")
    mark: Mark | None = Field(
        None, description="the text that stands for a position; default: a position behind the text"
    )


class ScoreItem(ScoreQuestion):
    """A pinned text. Exactly one of the three prompts must be given."""

    model_config = ConfigDict(json_schema_extra={"oneOf": ONE_PROMPT})

    prompt: Annotated[str, Field(min_length=1)] | None = Field(None, description="a text")
    prompt_token_ids: Annotated[list[TokenId | None], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="token ids; null stands for a position"
    )
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = Field(None, description="a chat")


class ScoreRequest(ScoreQuestion, QueueFields, NamedModel):
    """POST /v1/score."""

    items: Annotated[list[ScoreItem], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
    top_logprobs: int = Field(0, ge=0, le=MAX_LIKELIEST, description="so many of the likeliest tokens of each position")
    normalize: bool = Field(True, description="`scores` are shares among the labels; false: probabilities")
    user: str | None = Field(None, description="a label that changes nothing")


class TokenScore(TypedDict):
    """One of the likeliest tokens at a position."""

    token: str
    token_id: int
    logprob: float
    bytes: list[int] | None


class ScoredPosition(TypedDict):
    """A position. `position`: the tokens before it. `scores`, `logprobs`, `token_ids`: one per label, in order."""

    position: int
    scores: list[float]
    logprobs: list[float]
    token_ids: list[int]
    top_logprobs: list[TokenScore]


class ScoredItem(TypedDict):
    """The positions of one item, in the order of its text."""

    index: int
    object: Literal["score"]
    positions: list[ScoredPosition]


class ScoreAnswer(TypedDict):
    """The answer of POST /v1/score. Positions count as no tokens."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoredItem]
    usage: OpenAiUsage
