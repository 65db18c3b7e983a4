"""POST /generate, at once or block by block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from service.gateway.http.builder import GenerateBuilder
from service.gateway.http.driver import Api, ParsedRequest, respond
from service.gateway.http.openapi import generate_docs
from service.gateway.http.parse import parse_generate, to_replica_request
from service.gateway.http.routes import locked
from service.gateway.upstream import Upstream
from service.wire import ModelCard


def _parse(body: Mapping[str, Any], card: ModelCard, timeout_limit_s: float) -> ParsedRequest:
    request = parse_generate(body, card.default_mode)
    return ParsedRequest(requests=(to_replica_request(request, card, timeout_limit_s),), stream=request.stream)


GENERATE_API: Final = Api(_parse, GenerateBuilder)


def generate_router(upstream: Upstream) -> APIRouter:
    """The route, to be mounted at the root."""
    router = APIRouter(route_class=locked(upstream.authorize))

    @router.post("/generate", **generate_docs())
    async def generate(request: Request) -> Response:
        return await respond(GENERATE_API, upstream, request)

    return router
