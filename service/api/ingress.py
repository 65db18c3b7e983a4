"""One ingress: the FastAPI application over any `Backend`. Authorizes, validates, asks, shapes answers.

Knows no engine and no Ray: `deployments.py` gives it Serve's handles, tests a generator in this process.
"""

from __future__ import annotations

import hmac
from contextlib import aclosing
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp

from service.api import problems
from service.api.answers import Health, Live, Models, answer_json, models_json
from service.api.backend import Backend, serving
from service.api.draining import DrainGate, Draining
from service.api.exposition import CONTENT_TYPE, expose
from service.api.failover import REASONS, Answering, Failover
from service.api.journal import Journal, JournaledAnswers, current_record
from service.api.metrics import Registry
from service.api.middleware import BodyLimit, RequestId
from service.api.openai.routes import Upstream, openai_router
from service.api.openapi import Documented, errors, generate_docs
from service.api.streams import Exchange, event_stream, first_of
from service.api.tracing import Tracing, telemetry
from service.api.validation import parse_generate, parse_json, to_work
from service.api.wire import Answer, Snapshot, Work
from service.errors import MrpServeError, Unauthorized
from service.settings import Settings


class Ingress:
    """Its settings, the replicas behind it, its counters. `name` tells it apart in metrics."""

    def __init__(self, name: str, settings: Settings, backend: Backend, tracing: Tracing | None = None) -> None:
        self._name, self._settings, self._backend, self._tracing = name, settings, backend, tracing
        self._registry = Registry("ingress")
        for reason in REASONS:
            self._registry.add("request_failovers_total", 0, reason=reason)
        replicas = Failover(backend, settings.max_failovers, self._count_failover)
        self._answers = JournaledAnswers(replicas, settings.model_name)
        self._in_flight = 0
        self.draining = Draining()

    def app(self, *, answers_request_id: bool) -> ASGIApp:
        """The application. `answers_request_id`: it sends X-Request-Id itself; not where Serve does."""
        app = Documented(telemetry(self._tracing))
        problems.install(app, self._count_rejected)
        self._add_routes(app)
        limited = BodyLimit(app, self._settings.max_body_bytes)
        gate = DrainGate(limited, self.draining, self._count_rejected)
        return RequestId(Journal(gate), answer=answers_request_id)

    def snapshot(self) -> Snapshot:
        """Its metrics now."""
        return Snapshot(self._name, self._in_flight, self._registry.families())

    def _add_routes(self, app: FastAPI) -> None:
        locked = [Depends(self._authorize)]
        app.post("/generate", dependencies=locked, **generate_docs())(self._generate)
        listed = {200: {"model": Models}, **errors(401, 503)}
        app.get("/v1/models", dependencies=locked, summary="The model and its limits", responses=listed)(self._models)
        backend, count, limit = self._backend, self._count_rejected, self._settings.request_timeout_s
        openai = openai_router(Upstream(backend.card, self._complete, self._stream, count, limit))
        app.include_router(openai, dependencies=locked)
        alive: dict[int | str, Any] = {200: {"model": Live}}
        app.get("/live", summary="Whether this server's process answers", responses=alive)(self._live)
        healthy = {200: {"model": Health}, **errors(503)}
        app.get("/health", summary="Whether a replica can generate", responses=healthy)(self._health)
        app.get("/metrics", summary="Prometheus text of all replicas", response_class=PlainTextResponse)(self._metrics)

    # --- routes ------------------------------------------------------------------------------------

    async def _generate(self, request: Request) -> Response:
        card = await self._backend.card()
        wanted = parse_generate(parse_json(await request.body()), card.default_mode)
        work = to_work(wanted, card, self._settings.request_timeout_s)
        if wanted.stream:
            items = self._stream(work)
            exchange = Exchange(work, card, request.scope["request_id"], self._count_rejected)
            return event_stream(await first_of(items), items, exchange)
        return JSONResponse(answer_json(await self._complete(work), work, card))

    async def _models(self) -> Response:
        return JSONResponse(models_json(await self._backend.card()))

    async def _live(self) -> Response:
        return JSONResponse({"status": "ok"})

    async def _health(self) -> Response:
        self.draining.check()
        statuses = await self._backend.statuses()
        serving(statuses)
        return JSONResponse({"status": "ok", "replicas_ready": sum(status.failure is None for status in statuses)})

    async def _metrics(self) -> Response:
        return Response(expose(*await self._backend.snapshots(self.snapshot())), media_type=CONTENT_TYPE)

    async def _authorize(self, request: Request) -> None:
        """Refuses a request without one of the configured keys. All keys are compared, in constant time."""
        if not self._settings.api_keys:
            return
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if not any([hmac.compare_digest(given.encode("latin-1"), key.encode()) for key in self._settings.api_keys]):  # noqa: C419 - a generator would stop early
            raise Unauthorized(f"the API key is {'wrong' if given else 'missing'}; send `Authorization: Bearer <key>`")

    # --- answers -----------------------------------------------------------------------------------

    async def _complete(self, work: Work) -> Answer:
        self._in_flight += 1
        try:
            async with self.draining.until_cut():
                return await self._answers.complete(work)
        finally:
            self._in_flight -= 1

    async def _stream(self, work: Work) -> Answering:
        self._in_flight += 1
        try:
            async with aclosing(self._answers.stream(work)) as items:
                while True:
                    async with self.draining.until_cut():
                        item = await anext(items, None)
                    if item is None:
                        return
                    yield item
        finally:
            self._in_flight -= 1

    def _count_rejected(self, error: MrpServeError) -> None:
        self._registry.add("request_rejected_total", reason=error.code)
        if record := current_record():
            record.error = error.code

    def _count_failover(self, error: MrpServeError) -> None:
        self._registry.add("request_failovers_total", reason=error.code)
