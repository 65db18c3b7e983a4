"""POST /generate, at once or block by block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from service.gateway.http.builder import GenerateBuilder
from service.gateway.http.driver import Api, Upstream, respond
from service.gateway.http.openapi import generate_docs
from service.gateway.http.parse import RequestContext, parse_generate, to_replica_request
from service.gateway.http.routes import locked


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
