"""The two Serve deployments: `Ingress` (HTTP, CPU) in front of `Generator` (the model, its device).

Serve makes these classes from `service.app:build`. Every process of the service imports this module. A class therefore
imports its dependencies when it is constructed: an ingress loads no torch, a replica no FastAPI application.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.exceptions import TaskCancelledError
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import MrpServeError
from service.messages.finished import FinishedRequests
from service.messages.replica_status import ControlCommand, ControlResult, Snapshot, Status
from service.messages.wire import Weights
from service.rayserve.network import keep_serve_on_loopback, leave_proxies_out
from service.rayserve.scaling import WANTED
from service.routing.affinity import RoutingReason
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.gateway.http.listener import Listener
    from service.link.requests import ReplicaLinks
    from service.replica.replica import Replica
    from service.telemetry.metrics import Registry

_log = logging.getLogger("ray.serve")

#: seconds between two checks for a stopped engine, and the time its requests have to get their error
_POLL_S = 0.1
_GRACE_S = 0.3
#: seconds after which an ingress does work that no request needs to wait for
_LATER_S = 0.005


class GeneratorDeployment:
    """One replica of the model. Serve starts it and checks its health. Requests come by links."""

    #: `module:name` of the engine's `EngineDeps`, if a subclass replaces the default ones
    deps = ""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Serve awaits it
        address = ray.util.get_node_ip_address()
        keep_serve_on_loopback(address)
        if ray.get_runtime_context().get_actor_id():
            _leave_torch_out()
        from service.ipc.connections import tune_interpreter
        from service.link.server import LinkServer
        from service.rayserve.network import link_tls
        from service.replica.start import start_replica
        from service.telemetry.logs import install_logs

        install_logs(settings)
        self._replica = await start_replica(_replica_name(), settings, self.deps)
        tune_interpreter()
        self._links = await LinkServer.start(self._replica, address, link_tls(ssl.PROTOCOL_TLS_SERVER))
        self._patience_s = settings.request_timeout_s
        self._watch = asyncio.create_task(_exit_when_failed(self._replica))

    async def status(self) -> Status:
        return replace(self._replica.status(), address=self._links.address)

    async def snapshot(self) -> Snapshot:
        return self._replica.snapshot()

    async def control(self, command: ControlCommand) -> ControlResult:
        return await self._replica.control(command)

    async def take_finished(self) -> FinishedRequests:
        return self._replica.take_finished()

    async def check_health(self) -> None:
        """Serve calls this. It replaces a replica that raises here because its engine has stopped."""
        failure = self._replica.status().failure
        if failure is not None:
            raise RuntimeError(failure)

    async def __del__(self) -> None:
        # Serve has taken this replica out of its broadcasts. The links wait for the requests that it has.
        if links := getattr(self, "_links", None):
            await links.close(self._patience_s)
        if hasattr(self, "_replica"):
            self._replica.close()


def with_asgi_disconnect(app: ASGIApp) -> ASGIApp:
    """Turns Serve's own error for a client that disconnected into ASGI's `http.disconnect`."""

    async def adapted(scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_or_disconnect() -> Message:
            try:
                return await receive()
            except TaskCancelledError:
                return {"type": "http.disconnect"}

        await app(scope, receive_or_disconnect, send)

    return adapted


def open_warning(settings: Settings) -> str:
    """A line for the log of a service behind Serve's proxies without API keys. Empty with keys."""
    if settings.api_keys or settings.api_keys_file:
        return ""
    return "no API keys are set, so whoever reaches the port of Serve's proxies (http_options.host) may use the service"


@serve.ingress()
class IngressDeployment:
    """The HTTP front. Serve builds the application in every replica by `__serve_build_asgi_app__`."""

    async def __init__(  # type: ignore[misc]
        self,
        settings: Settings,
        generator: DeploymentHandle[Any],
        listens: bool = False,
        trainer: DeploymentHandle[Any] | None = None,
    ) -> None:
        """`listens`: the ingress takes connections itself, on `host` and `port`. Otherwise Serve's proxies do.

        `trainer`: the handle of MRP's trainer, if `online_mrp_dir` is set.
        """
        leave_proxies_out()
        keep_serve_on_loopback(ray.util.get_node_ip_address())
        from service.gateway.deps import IngressDeps
        from service.gateway.http.listener import Listener
        from service.gateway.ingress import Ingress
        from service.rayserve.ray_backend import RayBackend
        from service.telemetry.logs import install_logs
        from service.telemetry.metrics import Registry
        from service.telemetry.tracing import start_tracing

        install_logs(settings)
        context = serve.get_replica_context()
        ingresses = serve.get_deployment_handle(context.deployment, context.app_name)
        registry = Registry("ingress")
        links = _links(settings, registry)
        backend = RayBackend(links, generator, ingresses, trainer, scales_to_zero=settings.num_replicas == 0)
        self._ingress = Ingress(_replica_name(), settings, backend, IngressDeps(start_tracing(settings), registry))
        self._ingress.watch()
        if not listens and (warning := open_warning(settings)):
            logging.getLogger(__name__).warning(warning)
        self._patience_s = settings.request_timeout_s
        self._listener: Listener | None = None
        if listens:
            app = self._ingress.app(answers_request_id=True, host=settings.host)
            self._listener = Listener(app, settings.host, settings.port)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return with_asgi_disconnect(self._ingress.app(answers_request_id=False))

    async def snapshot(self) -> Snapshot:
        return self._ingress.snapshot()

    async def require_weights(self, weights: Weights) -> None:
        self._ingress.require_weights(weights)

    async def publish_mrp(self, folder: str, version: int) -> Weights | MrpServeError:
        return await self._ingress.publish_mrp(folder, version)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {WANTED: self._ingress.replicas_wanted}

    async def check_health(self) -> None:
        """Serve calls this. It replaces an ingress whose server has stopped."""
        if self._listener is not None and not self._listener.listens:
            raise RuntimeError("the ingress's HTTP server has stopped")

    async def drain(self) -> int:
        return self._ingress.draining.begin()

    async def abort_requests(self) -> None:
        self._ingress.draining.abort()

    async def stop_listening(self) -> None:
        if self._listener is not None:
            await self._listener.close(_GRACE_S)

    async def __del__(self) -> None:
        if (listener := getattr(self, "_listener", None)) is not None:
            await listener.close(self._patience_s)


def _links(settings: Settings, registry: Registry) -> ReplicaLinks:
    from service.link.requests import ReplicaLinks
    from service.rayserve.network import link_tls
    from service.routing.router import Router, slack

    def on_route(reason: RoutingReason) -> None:
        registry.add("request_routed_total", by=reason)

    later = partial(asyncio.get_running_loop().call_later, _LATER_S)
    router = Router(slack(settings.slots), settings.enable_prefix_caching, on_route, later=later)
    return ReplicaLinks(router, partial(registry.set, "replicas_linked"), link_tls(ssl.PROTOCOL_TLS_CLIENT))


async def _exit_when_failed(replica: Replica) -> None:
    """Ends the process of a replica whose engine has stopped. Serve would route requests to it for a while."""
    while (failure := replica.status().failure) is None:
        await asyncio.sleep(_POLL_S)
    _log.critical("the engine stopped, so this replica's process exits: %s", failure)
    await asyncio.sleep(_GRACE_S)
    logging.shutdown()
    os._exit(1)


def _leave_torch_out() -> None:
    """Makes torch look absent in this process: transformers would import it, which takes two seconds and 190 MB."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # the import system's mark of an absent module
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def _replica_name() -> str:
    context = serve.get_replica_context()
    return f"{context.deployment}-{context.replica_id.unique_id}"
