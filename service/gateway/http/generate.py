"""POST /generate, whole or block by block, and the statistics that the answers of every API have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from service.engine.request import Stats
from service.errors import MrpServeError
from service.gateway.http.driver import Api, ResponseBuilder, Upstream, locked, respond
from service.gateway.http.errors import error_json
from service.gateway.http.openapi import generate_docs
from service.gateway.http.parse import RequestContext, parse_generate, to_replica_request
from service.gateway.http.protocol import AnswerStats, BlockFrame, DecodedStats, Done, GenerateAnswer, StepFrame, Traced
from service.gateway.http.streams import frame
from service.quality.schema import knobs_of
from service.wire import Answer, Chunk, Ending, Progress, ReplicaRequest, TraceStep


class GenerateBuilder(ResponseBuilder):
    """Builds the answer to one POST /generate."""

    def __init__(self, request: ReplicaRequest, model: str, *, stream: bool) -> None:
        super().__init__([request], stream=stream)
        self._request, self._model = request, model

    async def whole(self, answers: Sequence[Answer]) -> GenerateAnswer:
        [answer] = answers
        done, traced = self._done(answer.ending), self._traced(answer)
        return {"text": answer.text, "token_ids": answer.token_ids, **done, **traced}

    def step(self, progress: Progress) -> bytes:
        return b"".join(frame("step", step) for step in _steps(progress))

    def piece(self, index: int, chunk: Chunk) -> bytes:
        body: BlockFrame = {
            "index": chunk.index,
            "text": chunk.text,
            "token_ids": chunk.token_ids,
            "stats": stats_of(chunk.stats),
            **self._traced(chunk),
        }
        return frame("block", body)

    def closing(self, index: int, ending: Ending) -> bytes:
        return frame("done", self._done(ending))

    def error(self, error: MrpServeError, request_id: str) -> bytes:
        return frame("error", error_json(error, request_id))

    def _traced(self, part: Answer | Chunk) -> Traced:
        return {"trace": part.trace} if self._request.return_trace else {}

    def _done(self, ending: Ending) -> Done:
        request = self._request
        body: Done = {
            "id": f"gen-{request.request_id}",
            "model": self._model,
            "finish_reason": ending.finish_reason,
            "mode": request.params.mode,
            "knobs": knobs_of(request.params),
            "seed": request.sampling.seed,
            "usage": {
                "prompt_tokens": ending.prompt_tokens,
                "completion_tokens": ending.completion_tokens,
                "total_tokens": ending.prompt_tokens + ending.completion_tokens,
            },
            "stats": stats_of(ending.stats),
        }
        if request.constraint is not None:
            body["constraint_met"] = ending.constraint_met
        return body


def _parse(body: Mapping[str, Any], context: RequestContext) -> GenerateBuilder:
    request = parse_generate(body, context.card.default_mode)
    replica_request = to_replica_request(request, context, stream=request.stream)
    return GenerateBuilder(replica_request, context.card.name, stream=request.stream)


GENERATE_API: Final = Api(_parse)


def generate_router(upstream: Upstream) -> APIRouter:
    """The route, to be mounted at the root."""
    router = APIRouter(route_class=locked(upstream.authorize))

    @router.post("/generate", **generate_docs())
    async def generate(request: Request) -> Response:
        return await respond(GENERATE_API, upstream, request)

    return router


def _steps(progress: Progress) -> list[StepFrame]:
    """One frame for each step."""
    return [
        {
            **step,
            "step": index,
            "texts": {token: progress.texts[token] for token in _tokens(step)},
            "prompt_positions": progress.prompt_positions,
            "ms": milliseconds(progress.total_s),
        }
        for index, step in enumerate(progress.steps, progress.first)
    ]


def _tokens(step: TraceStep) -> set[int]:
    return {token for _, token, _ in (*step["revealed"], *step["drafted"])}


def stats_of(stats: Stats) -> AnswerStats:
    """How an answer was decoded."""
    forwards, first_s = stats.forwards, stats.first_block_s
    return {
        "tokens_per_forward": round(stats.tokens_per_forward, 4),
        "tokens_per_forward_total": round(stats.tokens_per_forward_total, 4),
        "forwards": {
            "prefill": forwards.prefill,
            "denoise": forwards.denoise,
            "verify": forwards.verify,
            "commit": forwards.commit,
            "mrp": forwards.mrp,
        },
        "drafts_proposed": stats.drafts_proposed,
        "drafts_accepted": stats.drafts_accepted,
        "remasked": stats.remasked,
        "forced_tokens": stats.forced_tokens,
        "mrp_steps": stats.mrp_steps,
        "cached_tokens": stats.cached_tokens,
        "queue_ms": milliseconds(stats.queue_s),
        "first_block_ms": None if first_s is None else milliseconds(first_s),
        "total_ms": milliseconds(stats.total_s),
    }


def decoded_stats(ending: Ending, request: ReplicaRequest) -> DecodedStats:
    """How an answer of another API was decoded: the statistics that this API has no fields for."""
    return {
        "finish_reason": ending.finish_reason,
        "mode": request.params.mode,
        "knobs": knobs_of(request.params),
        "seed": request.sampling.seed,
        **stats_of(ending.stats),
    }


def milliseconds(seconds: float) -> float:
    """Seconds as milliseconds with three decimals, the form of statistics and logs."""
    return round(seconds * 1000, 3)
