"""Ray and Serve on this machine, for one service: started, waited for, drained, stopped.

Serve's proxy listens on the settings' address, what Ray opens for itself on loopback, but for a port of every
replica, which asks for Ray's token (docs/security.md). Knows nothing of the program's flags and prints nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from service.errors import SettingsError
from service.settings import Settings

if TYPE_CHECKING:
    from ray.serve import Application

_APPLICATION = "mrp"
_OBJECT_STORE_BYTES = 200 * 2**20
#: how often Serve is asked how far it is
_POLL_S = 0.1
#: how long an ingress may take to answer, and requests that were cut to end
_CONTROL_S = 5.0
#: for the last bytes of answers on their way through Serve's proxy
_SETTLE_S = 0.2

#: what Ray and Serve read when they are imported
_ENVIRONMENT = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # for load balancers: a port for every replica, 30 s to shut down
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",  # a replica that hangs never drains
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.api.middleware:of_proxies",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # replicas listen on all addresses; who has no token is refused
}


def start(settings: Settings, num_cpus: int | None = None) -> None:
    """Starts Ray and Serve. Nothing of the model is loaded yet. `num_cpus`: what Ray is to believe there is.

    SettingsError where one of them does not start, or this machine has no room for the replicas.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    talkative = settings.log_level == "debug" and settings.log_format == "text"
    with _imported("service.app"), _named("Ray"):
        _start_ray(num_cpus, talkative)
    _check_room(settings)
    with _named("Serve"):
        _start_serve(settings, talkative)


@contextmanager
def _imported(module: str) -> Iterator[None]:
    """Imports a module beside what is done in the block: while Ray's processes start, this one has nothing to do."""
    import ray  # noqa: F401 - two threads that import its parts would wait for each other

    thread = threading.Thread(target=import_module, args=[module], daemon=True)
    thread.start()
    yield
    thread.join()


def _start_ray(num_cpus: int | None, talkative: bool) -> None:
    import ray

    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        log_to_driver=talkative,
        logging_level=logging.INFO if talkative else logging.ERROR,
    )


def _check_room(settings: Settings) -> None:
    import ray

    from service.app import wants_gpu
    from service.cli.preflight import check_room

    check_room(settings, ray.cluster_resources(), ("CPU", "GPU") if wants_gpu(settings.device) else ("CPU",))


def _start_serve(settings: Settings, talkative: bool) -> None:
    """Returns when Serve's controller answers. The proxy starts beside what is deployed then."""
    from ray import serve

    started: Future[None] = Future()

    def start() -> None:
        try:
            _start_controller_and_proxy(settings, talkative)
            started.set_result(None)
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            started.set_exception(error)

    threading.Thread(target=start, daemon=True).start()
    while not started.done() and not serve.status().proxies:
        time.sleep(_POLL_S)
    if started.done():
        started.result()


def _start_controller_and_proxy(settings: Settings, talkative: bool) -> None:
    from ray import serve

    if not talkative:
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(
        http_options={"host": settings.host, "port": settings.port},
        logging_config={
            "log_level": settings.log_level.upper(),
            "encoding": settings.log_format.upper(),
            "enable_access_log": False,
        },
    )


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Makes one line of whatever keeps a part from starting: Ray raises many unrelated types."""
    try:
        yield
    except Exception as error:
        said = next(iter(str(error).splitlines()), "")
        raise SettingsError(f"{what} did not start: {type(error).__name__}: {said}") from error


def deploy(
    settings: Settings, application: Application | None = None, say: Callable[[str], None] | None = None
) -> None:
    """Deploys the application, or a changed one over it, or the one that is given; returns when it serves.

    `say` is told what it waits for. SettingsError when it cannot serve, with what a replica failed of.
    """
    from ray import serve

    from service.app import build
    from service.cli.readiness import wait_until_running

    target = serve.RunTarget(application or build(settings), name=_APPLICATION, route_prefix="/")
    with _named("Serve"):
        serve.run_many([target], wait_for_applications_running=False)
    wait_until_running(_APPLICATION, say or (lambda _: None))


async def drain(timeout_s: float) -> bool:
    """No new requests; waits until those in flight are answered. False: some had to be cut after `timeout_s`."""
    in_time = await _answered(timeout_s)
    if not in_time:
        with suppress(TimeoutError):
            await _ask_ingresses("cut")
        await _answered(_CONTROL_S)
    await asyncio.sleep(_SETTLE_S)
    return in_time


def stop() -> None:
    """Ends all processes of the service. Nothing is waited for: `drain` has done so.

    Serve's own shutdown would take the replicas down one tier after the other, which takes seconds and
    serves nobody: what it tidies up goes with the cluster.
    """
    import ray

    if ray.is_initialized():
        ray.shutdown()


async def _answered(timeout_s: float) -> bool:
    """Waits until no ingress has a request in hand; False if that took longer."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            while await _busy():
                if limit.expired():  # and not noticed: Python 3.11's `wait_for` drops what comes along with its result
                    return False
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False
    return True


async def _busy() -> bool:
    """Whether an ingress has requests in hand, or does not say."""
    try:
        return any(await _ask_ingresses("drain"))
    except TimeoutError:
        return True


async def _ask_ingresses(method: str) -> list[Any]:
    """What all ingresses answer; nothing if there is none yet."""
    import ray
    from ray import serve
    from ray.serve.exceptions import RayServeException

    if not ray.is_initialized():
        return []
    try:
        response = serve.get_app_handle(_APPLICATION).broadcast(method)
        answers = await response.results_async(timeout_s=_CONTROL_S, return_exceptions=True)
    except RayServeException:
        return []
    return [answer for answer in answers if not isinstance(answer, Exception)]
