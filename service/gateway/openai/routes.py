"""The routes under /v1 that OpenAI's client calls, except the list of models, which the ingress serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from service.admission.charge import TokenCharge
from service.errors import MrpServeError
from service.gateway.http.concurrent import all_of, merged
from service.gateway.http.models import models_json
from service.gateway.http.responses import JsonAnswer
from service.gateway.http.routes import answering
from service.gateway.http.validation import check_model, parse_json
from service.gateway.openai.answers import Writer
from service.gateway.openai.convert import ParsedRequest, plan_chat, plan_completion
from service.gateway.openai.dialect import CHAT, COMPLETION, Dialect
from service.gateway.openai.docs import chat_docs, completion_docs, model_docs
from service.gateway.openai.errors import in_openai_terms, openai_error, openai_problem
from service.gateway.openai.stream import Script, choice_stream, started
from service.gateway.upstream import Upstream
from service.telemetry.faults import unexpected_error
from service.wire import Answer, ModelCard, Work

Planner = Callable[[Mapping[str, Any], ModelCard, float], ParsedRequest]


def openai_router(upstream: Upstream) -> APIRouter:
    """The routes, to be mounted at the root."""
    routes = _Routes(upstream)
    router = APIRouter(prefix="/v1", route_class=answering(upstream.authorize, upstream.count, openai_problem))
    router.post("/completions", **completion_docs())(routes.completions)
    router.post("/chat/completions", **chat_docs())(routes.chat)
    router.get("/models/{model_id:path}", **model_docs())(routes.model)
    return router


class _Routes:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, plan_completion, COMPLETION)

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, plan_chat, CHAT)

    async def model(self, model_id: str) -> Response:
        card = await self._upstream.card()
        check_model(model_id, card)
        return JsonAnswer(models_json(card)["data"][0])

    async def _answer(self, request: Request, planner: Planner, dialect: Dialect) -> Response:
        card = await self._upstream.card()
        plan = planner(parse_json(await request.body()), card, self._upstream.timeout_limit_s)
        try:
            admitted = await self._upstream.admit(request, [choice.work for choice in plan.choices])
            plan = plan.with_works(admitted.works)
            writer = Writer(plan, dialect)
            if plan.stream:
                return await self._stream(plan, admitted.charge, writer, request.scope["request_id"])
            answers = await all_of(self._complete(choice.work, admitted.charge) for choice in plan.choices)
        except MrpServeError as error:
            raise in_openai_terms(error) from error
        return JsonAnswer(await writer.answer(answers))

    async def _stream(self, plan: ParsedRequest, charge: TokenCharge, writer: Writer, request_id: str) -> Response:
        items = await started(merged([self._upstream.stream(choice.work, charge) for choice in plan.choices]))

        def failed(error: Exception) -> dict[str, Any]:
            ours = error if isinstance(error, MrpServeError) else unexpected_error(error, request_id)
            self._upstream.count(ours)
            return openai_error(in_openai_terms(ours), request_id)

        return choice_stream(items, Script(plan.choices, writer, failed))

    async def _complete(self, work: Work, charge: TokenCharge) -> Answer:
        return await self._upstream.complete(work, charge)
