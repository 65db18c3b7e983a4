"""POST /v1/score."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from service.admission.charge import TokenCharge
from service.errors import InvalidRequest
from service.gateway.http.concurrent import all_of
from service.gateway.http.openapi import errors
from service.gateway.http.responses import JsonAnswer
from service.gateway.http.routes import answering
from service.gateway.http.shared_schema import inlined
from service.gateway.http.validation import parse_json
from service.gateway.openai.errors import openai_problem
from service.gateway.openai.shapes import OpenAiErrorAnswer
from service.gateway.score.answers import score_json
from service.gateway.score.convert import plan_scores
from service.gateway.score.schemas import ScoreAnswer, ScoreRequest
from service.gateway.upstream import Upstream
from service.wire import Answer, Work

_EXAMPLE = {
    "model": "demo",
    "items": [{"messages": [{"role": "user", "content": "Is 12 + 5 = 17?"}]}, {"prompt": "12+5=[?]7", "mark": "[?]"}],
    "top_logprobs": 3,
}


def score_router(upstream: Upstream) -> APIRouter:
    """The route, to be mounted at the root."""
    router = APIRouter(prefix="/v1", route_class=answering(upstream.authorize, upstream.count, openai_problem))
    router.post("/score", **_docs())(_Route(upstream).score)
    return router


class _Route:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def score(self, request: Request) -> Response:
        upstream = self._upstream
        body, card = parse_json(await request.body()), await upstream.card()
        plan = plan_scores(body, card, upstream.timeout_limit_s)
        admitted = await upstream.admit(request, plan.works)
        works = enumerate(admitted.works)
        return JsonAnswer(score_json(plan, await all_of(self._one(*work, admitted.charge) for work in works)))

    async def _one(self, number: int, work: Work, charge: TokenCharge) -> Answer:
        """An item's answer. An error that only the replica finds names the item, too."""
        try:
            return await self._upstream.complete(work, charge)
        except InvalidRequest as error:
            param = f"items.{number}" if error.param is None else f"items.{number}.{error.param}"
            raise type(error)(error.message, param=param, retry_after=error.retry_after) from error


@cache
def _docs() -> dict[str, Any]:
    """FastAPI's arguments. The result is cached and must not be changed."""
    schema = ScoreRequest.model_json_schema()
    content = {"application/json": {"schema": inlined(schema, schema.pop("$defs", {})), "example": _EXAMPLE}}
    return {
        "summary": "Probabilities of labels at places of a pinned text",
        "response_class": JSONResponse,
        "responses": {
            200: {"model": ScoreAnswer},
            **errors(401, 404, 413, 422, 429, 503, 504, model=OpenAiErrorAnswer),
        },
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }
