"""The JSON of answers, blocks and errors, and its schema for the documentation.

The pydantic models are the schema. The functions build plain dictionaries; tests compare them with the models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from service.decode.knobs import KnobValue
from service.engine.request import ForwardCounts as EngineForwardCounts
from service.engine.request import Stats
from service.errors import MrpServeError
from service.quality.schema import knobs_of
from service.wire import Answer, Chunk, Ending, ModelCard, Progress, Work


class ForwardCounts(BaseModel):
    """The number of forwards of each kind in which the request had a row.

    A commit that shares a forward with other work is not counted.
    """

    prefill: int
    denoise: int
    verify: int
    commit: int
    mrp: int


class AnswerStats(BaseModel):
    """How the answer was decoded. `mrp_steps`: as requested, or as chosen by `auto`.

    `forced_tokens`: tokens that a constraint forced, for which no forward was needed.

    Times count from the arrival of the request at the ingress.
    """

    tokens_per_forward: float
    tokens_per_forward_total: float
    forwards: ForwardCounts
    drafts_proposed: int
    drafts_accepted: int
    remasked: int
    forced_tokens: int
    mrp_steps: int | None
    cached_tokens: int
    queue_ms: float
    first_block_ms: float | None
    total_ms: float


class DecodedStats(AnswerStats):
    """How an answer of another API was decoded, with this service's finish reason."""

    finish_reason: Literal["stop", "length", "timeout"]
    mode: str
    knobs: dict[str, KnobValue]
    seed: int


class Usage(BaseModel):
    """Token counts as OpenAI names them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TraceStep(BaseModel):
    """One decision on one block. Positions are relative to the block; picks are [position, token id, confidence]."""

    block: int
    kind: Literal["denoise", "verify", "mrp", "forced"]
    revealed: list[tuple[int, int, float]]
    revoked: list[int]
    drafted: list[tuple[int, int, float]]
    accepted: int


class StepFrame(TraceStep):
    """A frame of a stream with `stream_steps`: one decision, before the frame of its block.

    `step`: its number in the block. A number that comes again replaces that step and those after it: another replica
    decodes the block again. `texts`: the text of each token. `prompt_positions`: positions of the block that the
    prompt fills. `ms`: when it was made, counted from the arrival of the request at the ingress.
    """

    step: int
    texts: dict[int, str]
    prompt_positions: int
    ms: float


class Done(BaseModel):
    """The last frame of a stream: the answer without the fields that earlier frames had.

    `constraint_met`: whether the answer satisfies the request's constraint; only there if it has one.
    """

    id: str
    model: str
    finish_reason: Literal["stop", "length", "timeout"]
    mode: str
    knobs: dict[str, KnobValue]
    seed: int
    usage: Usage
    stats: AnswerStats
    constraint_met: bool | None = None


class GenerateAnswer(Done):
    """The answer of POST /generate."""

    text: str
    token_ids: list[int]
    trace: list[TraceStep] | None = None


class BlockFrame(BaseModel):
    """A frame of a stream: one finished block."""

    index: int
    text: str
    token_ids: list[int]
    stats: AnswerStats
    trace: list[TraceStep] | None = None


class Live(BaseModel):
    """The answer of GET /live."""

    status: Literal["ok"]


class Health(BaseModel):
    """The answer of GET /health."""

    status: Literal["ok"]
    replicas_ready: int


class ErrorDetail(BaseModel):
    """What went wrong; `param` names the field at fault."""

    code: str
    message: str
    param: str | None
    request_id: str


class ErrorAnswer(BaseModel):
    """The body of every error."""

    error: ErrorDetail


#: the kinds of forwards
_FORWARDS = EngineForwardCounts.__struct_fields__


def stats_json(stats: Stats) -> dict[str, Any]:
    """How an answer was decoded."""
    first = stats.first_block_s
    return {
        "tokens_per_forward": round(stats.tokens_per_forward, 4),
        "tokens_per_forward_total": round(stats.tokens_per_forward_total, 4),
        "forwards": {kind: getattr(stats.forwards, kind) for kind in _FORWARDS},
        "drafts_proposed": stats.drafts_proposed,
        "drafts_accepted": stats.drafts_accepted,
        "remasked": stats.remasked,
        "forced_tokens": stats.forced_tokens,
        "mrp_steps": stats.mrp_steps,
        "cached_tokens": stats.cached_tokens,
        "queue_ms": milliseconds(stats.queue_s),
        "first_block_ms": None if first is None else milliseconds(first),
        "total_ms": milliseconds(stats.total_s),
    }


def decoded_json(ending: Ending, work: Work) -> dict[str, Any]:
    """How an answer of another API was decoded: what that API has no fields for."""
    params, seed = work.params, work.sampling.seed
    own = {"finish_reason": ending.finish_reason, "mode": params.mode, "knobs": knobs_of(params), "seed": seed}
    return own | stats_json(ending.stats)


def answer_json(answer: Answer, work: Work, card: ModelCard) -> dict[str, Any]:
    """A whole answer."""
    body = {"text": answer.text, "token_ids": answer.token_ids, **done_json(answer.ending, work, card)}
    return body | {"trace": answer.trace} if work.return_trace else body


def done_json(ending: Ending, work: Work, card: ModelCard) -> dict[str, Any]:
    """The last frame of a stream."""
    body = {
        "id": f"gen-{work.request_id}",
        "model": card.name,
        "finish_reason": ending.finish_reason,
        "mode": work.params.mode,
        "knobs": knobs_of(work.params),
        "seed": work.sampling.seed,
        "usage": {
            "prompt_tokens": ending.prompt_tokens,
            "completion_tokens": ending.completion_tokens,
            "total_tokens": ending.prompt_tokens + ending.completion_tokens,
        },
        "stats": stats_json(ending.stats),
    }
    return body if work.constraint is None else body | {"constraint_met": ending.constraint_met}


def block_json(chunk: Chunk, work: Work) -> dict[str, Any]:
    """One frame of a stream."""
    body = {"index": chunk.index, "text": chunk.text, "token_ids": chunk.token_ids, "stats": stats_json(chunk.stats)}
    return body | {"trace": chunk.trace} if work.return_trace else body


def step_json(progress: Progress) -> list[dict[str, Any]]:
    """The `step` frames of a stream: one for each step."""
    common = {"prompt_positions": progress.prompt_positions, "ms": milliseconds(progress.total_s)}
    return [
        {**step, "step": number, "texts": {token: progress.texts[token] for token in _tokens(step)}, **common}
        for number, step in enumerate(progress.steps, progress.first)
    ]


def _tokens(step: Mapping[str, Any]) -> set[int]:
    return {token for _, token, _ in (*step["revealed"], *step["drafted"])}


def error_json(error: MrpServeError, request_id: str) -> dict[str, Any]:
    """An error as every route sends it."""
    detail = {"code": error.code, "message": error.message, "param": error.param, "request_id": request_id}
    return {"error": detail}


def milliseconds(seconds: float) -> float:
    """Seconds as milliseconds with three decimals, the form of statistics and logs."""
    return round(seconds * 1000, 3)
