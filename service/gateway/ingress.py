"""One ingress: the FastAPI application over any `Backend`.

It authorizes and validates requests, sends them to the replicas and writes the answers. `rayserve/deployments.py`
gives it the links; tests give it a generator in the same process.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from service.admission.charge import TokenCharge
from service.admission.controller import AdmissionController
from service.admission.keys import KeyRing
from service.admission.throughput import MIN_WANTED
from service.api.answers import Health, Live, Version
from service.api.anthropic.routes import anthropic_router
from service.api.driver import JsonAnswer, locked
from service.api.errors import CODES, install_error_handlers
from service.api.fields import IGNORED, STRICT, IgnoredFields
from service.api.generate import generate_router
from service.api.models import Models, models_json
from service.api.openai.routes import openai_router
from service.api.openai.tokens import tokens_router
from service.api.openapi import ANTHROPIC, DECODING, OPENAI, OPERATION, documented, errors, route_docs
from service.api.parse import RequestContext
from service.api.score.routes import score_router
from service.errors import EngineFailed, MrpServeError, ReplicaLost, ScaledToZero
from service.gateway.admin import admin_router
from service.gateway.availability import Availability
from service.gateway.backend import Backend, none_ready, problem_of
from service.gateway.deps import IngressDeps
from service.gateway.draining import Draining
from service.gateway.http.bodies import MOST_BYTES, Bodies
from service.gateway.http.middleware import (
    REQUEST_ID,
    OriginGate,
    sent_key,
    with_body_limit,
    with_head_as_get,
)
from service.gateway.metrics import Throttled, expose
from service.gateway.pause import ServicePause, add_pause_routes
from service.gateway.pipeline import RequestPipeline
from service.gateway.playground.routes import playground_routes
from service.gateway.prefix_cache import add_cache_route
from service.gateway.request_log import Record, current_origin, current_record, telemetry, with_request_log
from service.gateway.stall_watch import StallWatch
from service.gateway.weights import ServiceWeights, UpdateWeightsRequest, add_weight_routes
from service.messages.replica_status import ModelCard, Snapshot, Status
from service.messages.wire import ReplicaRequest, Weights
from service.routing.affinity import ROUTING_REASONS
from service.routing.failover import REASONS, FailoverPolicy
from service.settings.settings import Settings

#: methods that pages of other sites may use, and headers of an answer that they may read
CORS_METHODS = ("GET", "HEAD", "POST")
CORS_EXPOSED = (REQUEST_ID, IGNORED, "request-id", "retry-after")

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class Ingress:
    """One ingress: its settings, its replicas and its counters. `name` is its name in metrics."""

    def __init__(self, name: str, settings: Settings, backend: Backend, deps: IngressDeps | None = None) -> None:
        deps = deps or IngressDeps()
        self._name = name
        self._settings = settings
        self._backend = backend
        self._tracing = deps.tracing
        self._registry = deps.registry
        self._registry.set("replicas_least", settings.num_replicas)
        self._registry.set("replicas_most", settings.max_num_replicas)
        self._registry.set("replicas_linked", 0)
        self._registry.start("request_rejected_total", reason=CODES)
        self._registry.start("request_failovers_total", reason=REASONS)
        self._registry.start("request_routed_total", by=ROUTING_REASONS)
        self._keys = keys = KeyRing.load(settings)
        self.admission = AdmissionController(settings, deps.clock, tenants=len(keys))
        self._availability = Availability(
            backend, self.admission, settings.request_timeout_s, self._observe_card, deps.poll_s
        )
        self._weights = ServiceWeights(backend, settings.model, self._availability.poll, deps.catch_up_s)
        self._pause = ServicePause(backend, self._availability.poll, deps.catch_up_s)
        self._ignored_fields: set[str] = set()  # names in the log
        self._in_work: set[Record] = set()  # the requests that have not ended
        self._reader = ThreadPoolExecutor(1, "bodies")
        self.bodies = Bodies(max(MOST_BYTES, settings.max_body_bytes))
        self.draining = Draining(self.bodies)
        failover = FailoverPolicy(
            settings.max_failovers,
            self._count_failover,
            lambda: self._weights.newest,
            deps.failover_s,
            deps.longest_failover_s,
        )
        self.pipeline = RequestPipeline(backend, self.admission, self.draining, failover, settings.model_name)
        self._page = Throttled(self._exposed)

    def app(self, *, answers_request_id: bool, host: str | None = None) -> ASGIApp:
        """The application. `answers_request_id`: whether it sends X-Request-Id. Under Serve, the proxies send it.

        `host`: the address on which the ingress listens itself. None behind Serve's proxies.
        """
        app = documented(telemetry(self._tracing))
        install_error_handlers(app, self.count_rejected)
        self._add_routes(app)
        limited = with_body_limit(with_head_as_get(app), self._settings.max_body_bytes)
        guarded = self._guarded(self.draining.gate(limited, self.count_rejected), host)
        layers = with_request_log(guarded, answers_id=answers_request_id, in_work=self._in_work)

        async def by_type(scope: Scope, receive: Receive, send: Send) -> None:
            await (layers if scope["type"] == "http" else app)(scope, receive, send)

        return by_type

    def _guarded(self, app: ASGIApp, host: str | None) -> ASGIApp:
        """Pages of other sites get answers if `allowed_origins` names them, or if they have an API key.

        Without `allowed_origins`, browsers show no answer to them. Serve's proxies listen elsewhere than `host` says.
        """
        origins = self._settings.allowed_origins
        if not self._keys:
            app = OriginGate(app, self.count_rejected, host, origins)
        return CORSMiddleware(app, origins, CORS_METHODS, ["*"], expose_headers=CORS_EXPOSED) if origins else app

    @property
    def replicas_wanted(self) -> float:
        """The number of replicas that this ingress's requests need. Above 0 if there is any request."""
        return max(self.admission.replicas_wanted, MIN_WANTED if self._availability.has_waiting else 0.0)

    def watch(self) -> None:
        """Watches the running loop from now on."""
        StallWatch(self._in_work).start()

    async def aside(self, work: Callable[[], _T]) -> _T:
        """The result of work that would hold up the event loop. One thread does it, one piece after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, work)

    def snapshot(self) -> Snapshot:
        self._registry.set("replicas_wanted", self.replicas_wanted)
        if self._availability.failed:
            self._registry.set("replicas_ready", 0)
        self._registry.set("queue_blocks_left", self.admission.blocks_left)
        self._registry.set("queue_blocks_per_second", self.admission.blocks_per_second)
        return Snapshot(self._name, self.pipeline.in_flight, self._registry.families(self._name))

    def require_weights(self, weights: Weights) -> None:
        self._weights.add(weights)

    async def publish_mrp(self, folder: str, version: int) -> Weights | MrpServeError:
        """Gives all replicas MRP's weights in a folder. Returns the weights that answer now, or why not."""
        try:
            order = UpdateWeightsRequest(model=folder, version=version, partial=True)
            return (await self._weights.update(order))[0].weights
        except MrpServeError as error:
            return error

    def _add_routes(self, app: FastAPI) -> None:
        app.include_router(generate_router(self))
        models = APIRouter(tags=[OPENAI], route_class=locked(self.authorize))
        models.get("/v1/models", **route_docs("Model and limits", Models, errors(401, 503)))(self._models)
        app.include_router(models)
        app.include_router(openai_router(self), tags=[OPENAI])
        app.include_router(score_router(self), tags=[DECODING])
        app.include_router(tokens_router(self), tags=[DECODING])
        app.include_router(anthropic_router(self), tags=[ANTHROPIC])
        app.include_router(self._operation())
        if self._settings.admin_keys:
            admins = KeyRing.load_admins(self._settings)
            router = admin_router(admins, self.bodies)
            add_weight_routes(router, self._weights)
            add_pause_routes(router, self._pause)
            app.include_router(router)
            root = admin_router(admins, self.bodies, prefix="")
            add_cache_route(root, self._backend)
            app.include_router(root)
        app.router.routes.extend(playground_routes())

    def _operation(self) -> APIRouter:
        """The routes for operators. They need no API key."""
        router = APIRouter(tags=[OPERATION])
        alive: dict[int | str, Any] = {200: {"model": Live}}
        router.get("/live", summary="Whether this server's process answers", responses=alive)(self._live)
        healthy = {200: {"model": Health}, **errors(503)}
        for path in ("/health", "/ping"):  # SageMaker asks for the second
            router.get(path, summary="Whether a replica can generate", responses=healthy)(self._health)
        answer: dict[int | str, Any] = {200: {"model": Version}}
        router.get("/version", summary="The version of this program", responses=answer)(self._version)
        metrics = router.get("/metrics", summary="Prometheus text of all replicas", response_class=PlainTextResponse)
        metrics(self._metrics)
        return router

    async def _models(self) -> Response:
        return JsonAnswer(models_json(await self.card()))

    async def _live(self) -> Response:
        return JsonAnswer({"status": "ok"})

    async def _version(self) -> Response:
        return JsonAnswer({"version": version("mrp-serve")})

    async def _health(self) -> Response:
        self.draining.check()
        try:
            statuses = await self._availability.statuses()
        except ScaledToZero:  # healthy: load balancers must still send requests here, only a request starts a replica
            statuses = []
        problems = self._problems(statuses)
        if statuses and all(problems.values()):
            raise none_ready(problems)
        return JsonAnswer({"status": "ok", "replicas_ready": list(problems.values()).count(None)})

    async def _metrics(self) -> Response:
        return Response(await self._page(), media_type=CONTENT_TYPE_LATEST)

    async def _exposed(self) -> bytes:
        return expose(*await self._backend.snapshots(self.snapshot()))

    @contextmanager
    def authorize(self, request: Request) -> Iterator[Request]:
        """The request with its API key in its state. Unauthorized if the key is missing or not configured.

        RateLimited before the body is read, if the key may send none. A request counts from its head on.
        """
        if self._keys.refresh():
            self.admission.set_tenants(len(self._keys))
        key = self._keys.find(sent_key(request.headers))
        request.state.api_key, request.state.admitted = key, False
        if record := current_record():
            record.tenant = key.name
        if request.method != "POST":
            yield request
            return
        self.admission.limits.take_request(key)
        try:
            with self.bodies.coming(key.name, request.receive) as receive:
                yield Request(request.scope, receive)
        except MrpServeError as error:
            if error.status >= 429 and not request.state.admitted:
                self.admission.limits.give_back_request(key)
            raise

    async def admit(self, request: Request, requests: Sequence[ReplicaRequest]) -> TokenCharge:
        charge = self.admission.admit(request.state.api_key, requests)
        request.state.admitted = True
        return charge

    async def context(self, request: Request) -> RequestContext:
        key, card = request.state.api_key, await self.card()
        salted = str if self._settings.share_prefixes_between_keys else key.salted
        limit_s = self._settings.request_timeout_s
        return RequestContext(
            card=card,
            timeout_limit_s=limit_s,
            tenant=key.name,
            tenant_share=key.weight,
            salted=salted,
            origin=current_origin(),
            weights=self._weights.newest,
            default_max_tokens=self._settings.default_max_tokens,
            ignored=IgnoredFields(request.headers.get(STRICT) == "true", self._ignored_fields),
        )

    def _observe_card(self, card: ModelCard, statuses: Sequence[Status]) -> None:
        self._weights.observe(card)
        self._pause.observe(statuses)
        self._registry.set("replicas_ready", list(self._problems(statuses).values()).count(None))
        # While all replicas have older weights, none answers, and a further one would not, either.
        is_behind = self._weights.newest is not None and card.weights.older_than(self._weights.newest)
        self.admission.set_halted(self._pause.newest.halted or is_behind)

    def _problems(self, statuses: Sequence[Status]) -> dict[str, str | None]:
        """Why each replica answers no request now. None for those that can."""
        weights, pause = self._weights.newest, self._pause.newest
        return {status.replica: problem_of(status, weights, pause) for status in statuses}

    async def card(self) -> ModelCard:
        """The card of the service."""
        with self.draining.abortable():
            return await self._availability.card()

    def count_rejected(self, error: MrpServeError) -> None:
        self._registry.add("request_rejected_total", reason=error.code)
        if record := current_record():
            record.error = error.code

    def _count_failover(self, error: MrpServeError) -> None:
        self._registry.add("request_failovers_total", reason=error.code)
        if isinstance(error, (ReplicaLost, EngineFailed)) and (record := current_record()):
            _log.warning("a request has lost its replica", extra={**record.about(), "error": error.code})
