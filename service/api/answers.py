"""What clients get: the JSON of answers, blocks and errors, and its schema for the documentation.

The models are the schema; the functions build plain dictionaries of that shape, which tests hold to it.
Knows no HTTP and no engine but its `Stats`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel

from service.api.wire import Answer, Chunk, Ending, ModelCard, Work
from service.engine.request import Stats
from service.errors import MrpServeError
from service.quality.presets import Presets
from service.quality.schema import Measured, Plan, QualityName, Row, knobs_of


class ForwardCounts(BaseModel):
    """In how many forwards of each kind the request had a row; a commit that rides along is not counted."""

    prefill: int
    denoise: int
    verify: int
    commit: int
    mrp: int


class AnswerStats(BaseModel):
    """How the answer was decoded. Times count from the arrival at the ingress."""

    tokens_per_forward: float
    tokens_per_forward_total: float
    forwards: ForwardCounts
    drafts_proposed: int
    drafts_accepted: int
    remasked: int
    cached_tokens: int
    queue_ms: float
    first_block_ms: float | None
    total_ms: float


class Usage(BaseModel):
    """Token counts as OpenAI names them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TraceStep(BaseModel):
    """One decision on one block. Positions are relative to the block; picks are [position, token id, confidence]."""

    block: int
    kind: Literal["denoise", "verify", "mrp"]
    revealed: list[tuple[int, int, float]]
    revoked: list[int]
    drafted: list[tuple[int, int, float]]
    accepted: int


class Done(BaseModel):
    """The last frame of a stream: the answer less what was sent."""

    id: str
    model: str
    finish_reason: Literal["stop", "length", "timeout"]
    mode: str
    knobs: dict[str, int | float | str]
    seed: int
    usage: Usage
    stats: AnswerStats


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


class Quality(BaseModel):
    """What `quality` stands for: the plans by name, the calibration they come from, or why there is none."""

    presets: dict[QualityName, Plan]
    missing: str | None
    measured: Measured | None
    frontier: list[Row]


class Model(BaseModel):
    """What is served, and its limits."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    block_size: int
    vocab_size: int
    max_model_len: int
    mrp: dict[str, Any] | None
    modes: list[str]
    default_mode: str
    defaults: dict[str, dict[str, float]]
    chat_template: bool
    quality: Quality


class Models(BaseModel):
    """The answer of GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


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
    """Every error, everywhere."""

    error: ErrorDetail


def stats_json(stats: Stats) -> dict[str, Any]:
    """How an answer was decoded."""
    first = stats.first_block_s
    return {
        "tokens_per_forward": round(stats.tokens_per_forward, 4),
        "tokens_per_forward_total": round(stats.tokens_per_forward_total, 4),
        "forwards": asdict(stats.forwards),
        "drafts_proposed": stats.drafts_proposed,
        "drafts_accepted": stats.drafts_accepted,
        "remasked": stats.remasked,
        "cached_tokens": stats.cached_tokens,
        "queue_ms": milliseconds(stats.queue_s),
        "first_block_ms": None if first is None else milliseconds(first),
        "total_ms": milliseconds(stats.total_s),
    }


def answer_json(answer: Answer, work: Work, card: ModelCard) -> dict[str, Any]:
    """A whole answer."""
    body = {"text": answer.text, "token_ids": answer.token_ids, **done_json(answer.ending, work, card)}
    return body | {"trace": answer.trace} if work.return_trace else body


def done_json(ending: Ending, work: Work, card: ModelCard) -> dict[str, Any]:
    """The last frame of a stream."""
    return {
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


def block_json(chunk: Chunk, work: Work) -> dict[str, Any]:
    """One frame of a stream."""
    body = {"index": chunk.index, "text": chunk.text, "token_ids": chunk.token_ids, "stats": stats_json(chunk.stats)}
    return body | {"trace": chunk.trace} if work.return_trace else body


def error_json(error: MrpServeError, request_id: str) -> dict[str, Any]:
    """An error as every route sends it."""
    detail = {"code": error.code, "message": error.message, "param": error.param, "request_id": request_id}
    return {"error": detail}


def models_json(card: ModelCard) -> dict[str, Any]:
    """GET /v1/models: OpenAI's list of one, with what this service adds."""
    model = {"id": card.name, "object": "model", "created": 0, "owned_by": "mrp-serve"}
    model |= {"block_size": card.block_size, "vocab_size": card.vocab_size, "max_model_len": card.max_model_len}
    model |= {"mrp": card.mrp, "modes": card.modes, "default_mode": card.default_mode}
    model |= {"defaults": card.defaults, "chat_template": card.chat}
    model |= {"quality": quality_json(card.quality)}
    return {"object": "list", "data": [model]}


def quality_json(presets: Presets) -> dict[str, Any]:
    """What `quality` stands for."""
    file = presets.file
    return {
        "presets": {name: plan.model_dump() for name, plan in presets.plans.items()},
        "missing": presets.missing,
        "measured": file and file.measured.model_dump(),
        "frontier": [row.model_dump() for row in file.frontier] if file else [],
    }


def milliseconds(seconds: float) -> float:
    """As statistics and logs have it."""
    return round(seconds * 1000, 3)
