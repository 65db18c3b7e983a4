"""POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from service.errors import MrpServeError
from service.gateway.anthropic.answers import Writer
from service.gateway.anthropic.convert import plan_count, plan_message
from service.gateway.anthropic.docs import count_docs, message_docs
from service.gateway.anthropic.errors import anthropic_error, anthropic_problem, in_anthropic_terms
from service.gateway.anthropic.stream import message_stream
from service.gateway.http.responses import JsonAnswer
from service.gateway.http.routes import answering
from service.gateway.http.streams import first_of
from service.gateway.http.validation import parse_json
from service.gateway.upstream import Upstream
from service.telemetry.faults import unexpected_error


def anthropic_router(upstream: Upstream) -> APIRouter:
    """The routes, to be mounted at the root."""
    routes = _Routes(upstream)
    router = APIRouter(prefix="/v1", route_class=answering(upstream.authorize, upstream.count, anthropic_problem))
    router.post("/messages", **message_docs())(routes.messages)
    router.post("/messages/count_tokens", **count_docs())(routes.count_tokens)
    return router


class _Routes:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def messages(self, request: Request) -> Response:
        upstream, request_id = self._upstream, request.scope["request_id"]
        body, card = parse_json(await request.body()), await upstream.card()
        plan = plan_message(body, card, upstream.timeout_limit_s, betas="anthropic-beta" in request.headers)
        admitted = await upstream.admit(request, [plan.work])
        [work], writer = admitted.works, Writer(plan)
        if not plan.stream:
            message = writer.message(await upstream.complete(work, admitted.charge))
            return JsonAnswer(message, headers={"request-id": request_id})

        def failed(error: Exception) -> dict[str, Any]:
            ours = error if isinstance(error, MrpServeError) else unexpected_error(error, request_id)
            upstream.count(ours)
            return anthropic_error(in_anthropic_terms(ours), request_id)

        items = upstream.stream(work, admitted.charge)
        response = message_stream(await first_of(items), items, writer, failed)
        response.headers["request-id"] = request_id
        return response

    async def count_tokens(self, request: Request) -> Response:
        upstream = self._upstream
        body, card = parse_json(await request.body()), await upstream.card()
        admitted = await upstream.admit(request, [plan_count(body, card, upstream.timeout_limit_s)])
        count = await upstream.tokens(admitted.works[0], admitted.charge)
        return JsonAnswer({"input_tokens": count}, headers={"request-id": request.scope["request_id"]})
