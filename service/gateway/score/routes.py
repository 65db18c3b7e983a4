"""POST /v1/score."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from service.errors import InvalidRequest, MrpServeError
from service.gateway.http.driver import Api, respond
from service.gateway.http.openapi import errors, inlined, route_docs
from service.gateway.http.routes import answering
from service.gateway.openai.errors import OpenAiErrorAnswer, openai_problem
from service.gateway.score.builder import ScoreBuilder
from service.gateway.score.parse import parse_score
from service.gateway.score.protocol import ScoreAnswer, ScoreRequest
from service.gateway.upstream import Upstream

_EXAMPLE: Final = {
    "model": "demo",
    "items": [{"messages": [{"role": "user", "content": "Is 12 + 5 = 17?"}]}, {"prompt": "12+5=[?]7", "mark": "[?]"}],
    "top_logprobs": 3,
}


def score_router(upstream: Upstream) -> APIRouter:
    """The route, to be mounted at the root."""
    router = APIRouter(prefix="/v1", route_class=answering(upstream.authorize, upstream.count, openai_problem))

    @router.post("/score", **_docs())
    async def score(request: Request) -> Response:
        return await respond(SCORE, upstream, request)

    return router


def _of_item(error: MrpServeError, index: int | None) -> MrpServeError:
    """An error that only the replica finds names the item, too."""
    if index is None or not isinstance(error, InvalidRequest):
        return error
    param = f"items.{index}" if error.param is None else f"items.{index}.{error.param}"
    return type(error)(error.message, param=param, retry_after=error.retry_after)


SCORE: Final = Api(parse_score, ScoreBuilder, _of_item)


@cache
def _docs() -> dict[str, Any]:
    """FastAPI's arguments. The result is cached and must not be changed."""
    schema = ScoreRequest.model_json_schema()
    content = {"application/json": {"schema": inlined(schema, schema.pop("$defs", {})), "example": _EXAMPLE}}
    failed = errors(401, 404, 413, 422, 429, 503, 504, model=OpenAiErrorAnswer)
    route = route_docs("Probabilities of labels at places of a pinned text", ScoreAnswer, failed)
    return route | {"openapi_extra": {"requestBody": {"required": True, "content": content}}}
