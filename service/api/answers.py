"""The answers of POST /generate and of the health routes, as typed dictionaries.

`generate.py` builds those of POST /generate. `openapi.py` documents all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from service.decode.knobs import KnobValue
from service.engine.request import FinishReason
from service.messages.wire import TraceStep

#: no answer ends with `abort`: its client has left
EndReason = Annotated[FinishReason, WithJsonSchema({"type": "string", "enum": ["stop", "length", "timeout"]})]


class ForwardsByKind(TypedDict):
    """The number of forwards of each kind in which the request had a row.

    A commit that shares a forward with other work is not counted.
    """

    prefill: int
    denoise: int
    verify: int
    commit: int
    mrp: int


class AnswerStats(TypedDict):
    """How the answer was decoded. `mrp_steps`: as requested, or as chosen by `auto`.

    `forced_tokens`: tokens that a constraint forced, for which no forward was needed.

    `weight_version`: the version of the weights that answered. `mrp_version`: the version that MRP came with, null
    without MRP. If it is lower, drafts come from an older module.

    Times count from the arrival of the request at the ingress.
    """

    tokens_per_forward: float
    tokens_per_forward_total: float
    forwards: ForwardsByKind
    drafts_proposed: int
    drafts_accepted: int
    remasked: int
    forced_tokens: int
    mrp_steps: int | None
    cached_tokens: int
    queue_ms: float
    first_block_ms: float | None
    total_ms: float
    weight_version: int
    mrp_version: int | None


class DecodedStats(AnswerStats):
    """How an answer of another API was decoded, with this service's finish reason."""

    finish_reason: EndReason
    mode: str
    knobs: dict[str, KnobValue]
    seed: int


class Usage(TypedDict):
    """Token counts as OpenAI names them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChoiceIndex(TypedDict):
    """The number of an answer. Only there if the request has more than one, by `n`."""

    choice: NotRequired[int]


class StepFrame(TraceStep, ChoiceIndex):
    """A frame of a stream with `stream_steps`: one decision, before the frame of its block.

    `step`: its number in the block. A number that comes again replaces that step and those after it: another replica
    decodes the block again. `texts`: the text of each token. `prompt_positions`: positions of the block that the
    prompt fills. `ms`: when it was made, counted from the arrival of the request at the ingress.
    """

    step: int
    texts: dict[int, str]
    prompt_positions: int
    ms: float


class Traced(TypedDict):
    """The decisions of decoding, with `return_trace`. With `return_step_map`, a number for each of `token_ids`.

    `step_map`: the number of the step that revealed the token, over the whole answer, from 1. `speculative` counts the
    steps of the mode that it verifies. `token_logprobs`: the token's log-probability at that step.
    """

    trace: NotRequired[Sequence[TraceStep]]
    step_map: NotRequired[Sequence[int]]
    token_logprobs: NotRequired[Sequence[float]]


class StopToken(TypedDict):
    """The stop token that ended the answer, which is not among `token_ids`, with its step and log-probability."""

    token_id: int
    step: int
    logprob: float


class Done(ChoiceIndex):
    """The last frame of a stream: the answer without the fields that earlier frames had.

    `constraint_met`: whether the answer satisfies the request's constraint; only there if it has one. `stop_token`:
    only there with `return_step_map`; null if no stop token ended the answer.
    """

    id: str
    model: str
    finish_reason: EndReason
    mode: str
    knobs: dict[str, KnobValue]
    seed: int
    usage: Usage
    stats: AnswerStats
    constraint_met: NotRequired[bool | None]
    stop_token: NotRequired[StopToken | None]


class GenerateAnswer(Done, Traced):
    """The answer of POST /generate."""

    text: str
    token_ids: Sequence[int]


class GenerateAnswers(TypedDict):
    """The answers of POST /generate with `n` above 1. `usage` counts the prompt once."""

    choices: list[GenerateAnswer]
    usage: Usage


class BlockFrame(Traced, ChoiceIndex):
    """A frame of a stream: one finished block."""

    index: int
    text: str
    token_ids: Sequence[int]
    stats: AnswerStats


class Live(TypedDict):
    """The answer of GET /live."""

    status: Literal["ok"]


class Health(TypedDict):
    """The answer of GET /health."""

    status: Literal["ok"]
    replicas_ready: int
