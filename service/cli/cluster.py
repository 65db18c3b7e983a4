"""Ray and Serve on this machine, for one service: started, deployed to, stopped.

Serve's proxy listens on the settings' address, what Ray opens for itself on loopback, but for a port of every
replica, which asks for Ray's token (docs/security.md). Knows nothing of the program's flags and prints nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from service.errors import SettingsError
from service.settings import Settings

if TYPE_CHECKING:
    from ray.serve import Application

#: its name in Serve
APPLICATION = "mrp"
_OBJECT_STORE_BYTES = 200 * 2**20
#: how often Serve's controller is asked whether it answers
_POLL_S = 0.1

#: what Ray and Serve read when they are imported
_ENVIRONMENT = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # for load balancers: a port for every replica, 30 s to shut down
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",  # a replica that hangs never drains
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.hooks:proxy_middleware",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # replicas listen on all addresses; who has no token is refused
}
#: What they read in this program alone. Serve kills a proxy that does not answer three checks of its start. 5 s each,
#: the default, are too short on a busy machine for a proxy that starts beside replicas.
_STARTING = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "20"}


def start(settings: Settings, num_cpus: int | None = None) -> None:
    """Starts Ray and Serve's proxy. Nothing of the model is loaded yet. `num_cpus`: what Ray is to believe there is.

    SettingsError where one of them does not start, or this machine has no room for the replicas.
    """
    proxy = begin(settings, num_cpus)
    with _named("Serve"):
        proxy.result()


def begin(settings: Settings, num_cpus: int | None = None) -> Future[None]:
    """As `start`, but returns when something can be deployed. The result: the proxy has started, or why it has not."""
    for name, value in (_ENVIRONMENT | _STARTING).items():
        os.environ.setdefault(name, value)
    talkative = settings.log_level == "debug" and settings.log_format == "text"
    with _imported("service.app"), _named("Ray"):
        _start_ray(num_cpus, talkative)
    _check_room(settings)
    with _named("Serve"):
        return _begin_serve(settings, talkative)


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


def _begin_serve(settings: Settings, talkative: bool) -> Future[None]:
    """Returns when Serve's controller answers, which then starts the proxy."""
    from ray import serve

    proxy: Future[None] = Future()

    def start() -> None:
        try:
            _start_serve(settings, talkative)
            proxy.set_result(None)
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            proxy.set_exception(error)

    threading.Thread(target=start, daemon=True).start()
    while not proxy.done() and not serve.status().proxies:
        time.sleep(_POLL_S)
    if proxy.done():
        proxy.result()
    return proxy


def _start_serve(settings: Settings, talkative: bool) -> None:
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
        from service.rayserve.serve_state import last_line, place

        text = str(error)
        said = last_line(text) if place(text) else f"{type(error).__name__}: {next(iter(text.splitlines()), '')}"
        raise SettingsError(f"{what} did not start: {said}") from error


def deploy(
    settings: Settings,
    application: Application | None = None,
    say: Callable[[str], None] | None = None,
    proxy: Future[None] | None = None,
) -> None:
    """Deploys the application, or a changed one over it, or the one that is given; returns when it serves.

    `say` is told what it waits for, `proxy` is what `begin` has returned. SettingsError when it cannot serve, with what
    a replica failed of.
    """
    from ray import serve

    from service.app import build
    from service.cli.readiness import wait_until_running

    target = serve.RunTarget(application or build(settings), name=APPLICATION, route_prefix="/")
    with _named("Serve"):
        serve.run_many([target], wait_for_applications_running=False)
        if proxy is not None:
            proxy.result()
    wait_until_running(APPLICATION, say or (lambda _: None))


def stop() -> None:
    """Ends all processes of the service. Nothing is waited for: `drain` has done so.

    Serve's own shutdown would take the replicas down one tier after the other, which takes seconds and
    serves nobody: what it tidies up goes with the cluster.
    """
    import ray

    if ray.is_initialized():
        ray.shutdown()
