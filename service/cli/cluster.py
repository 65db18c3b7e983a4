"""Starts Ray and Serve on this machine for one service, and deploys it. They end with the session (`guard.py`).

The ingress or Serve's proxy listens on the address of the settings. All other ports are on loopback and require Ray's
token, but for three that show metrics (docs/security.md). This module prints nothing.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from service.cli import preflight, private
from service.cli.ray_start import PATIENCE_S, start_ray
from service.errors import SettingsError
from service.rayserve.network import leave_proxies_out
from service.settings.settings import Settings

#: name of the application in Serve
APPLICATION = "mrp"
#: seconds after which a part that has not started is told of
_QUIET_S = 10.0

#: environment variables that Ray and Serve read when they are imported
ENVIRONMENT = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_PROXY_USE_GRPC": "1",  # throughput mode does not reach the proxies, which read this before
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(64 * 2**20),  # bytes; /metrics of 64 replicas has 3 MiB
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # off: it opens a port for every replica and takes 30 s to shut down
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",  # a replica that hangs never finishes draining
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.hooks:proxy_middleware",
    "RAY_worker_niceness": "0",  # Ray's default, 15, lets everything else on the machine go before the service
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # Ray refuses clients without the token
}
#: variables for this program only
PROGRAM_ENVIRONMENT = {
    # Serve kills a proxy that does not answer three checks of its start. The default of 5 s per check is too short for
    # a proxy that starts beside replicas on a busy machine.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(PATIENCE_S // 3),
    # Ray makes 127.0.0.1 the address of the network card otherwise, and listens there (ray#26293).
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_COLOR_PREFIX": "0",  # no colours: the output is often a log
}


def begin(settings: Settings, say: Callable[[str], None], num_cpus: int | None = None) -> None:
    """Starts Ray (with `num_cpus`) and Serve, with its proxy unless an ingress listens itself. Loads no model.

    `say` gets a line on a part that takes long.
    SettingsError if Ray or Serve does not start, or if this machine has no room for the replicas.
    """
    leave_proxies_out()
    for name, value in (ENVIRONMENT | PROGRAM_ENVIRONMENT | private.token()).items():
        os.environ.setdefault(name, value)
    talkative = settings.log_level == "debug" and settings.log_format == "text"
    with _imported("service.app"), _starting("Ray", say):
        start_ray(num_cpus, talkative)
    preflight.check_room(settings)
    with _starting("Serve", say):
        _start_serve(settings, talkative)


@contextmanager
def _imported(module: str) -> Iterator[None]:
    """Imports a module on another thread during the block, while this process waits for Ray's processes."""
    import ray  # noqa: F401 - two threads that import parts of ray at once would wait for each other

    thread = threading.Thread(target=import_module, args=[module], daemon=True)
    thread.start()
    yield
    thread.join()


def _start_serve(settings: Settings, talkative: bool) -> None:
    from ray import serve

    if not talkative:
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
    options: dict[str, Any] = {
        "proxy_location": "Disabled" if settings.ingress_listens else "EveryNode",
        "http_options": {"host": settings.host, "port": settings.port},
        "logging_config": {
            "log_level": settings.log_level.upper(),
            "encoding": settings.log_format.upper(),
            "enable_access_log": False,
        },
    }
    try:
        serve.start(**options)
    except TimeoutError:  # Serve runs, and its proxies took more than 60 s; the first answer is waited for anyway
        serve.start(**options)


@contextmanager
def _starting(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Tells of a part that starts slowly. Turns any error into a one-line SettingsError: Ray raises unrelated types."""
    slow = threading.Timer(_QUIET_S, say, [f"waiting for the processes of {what} …"])
    slow.daemon = True
    slow.start()
    try:
        yield
    except Exception as error:
        from service.rayserve.serve_state import last_line, raised_at

        text = str(error)
        reason = last_line(text) if raised_at(text) else f"{type(error).__name__}: {next(iter(text.splitlines()), '')}"
        raise SettingsError(f"{what} did not start: {reason}") from error
    finally:
        slow.cancel()


def deploy(settings: Settings, say: Callable[[str], None]) -> None:
    """Deploys the service of the settings, and returns when it answers requests. `say` gets progress lines.

    SettingsError, with the failure of a replica, if it cannot serve.
    """
    from ray import serve

    from service.app import build_one_machine
    from service.cli.own_port import OwnPort
    from service.cli.readiness import wait_until_ready

    target = serve.RunTarget(build_one_machine(settings), name=APPLICATION, route_prefix="/")
    with _starting("Serve", say):
        serve.run_many([target], wait_for_applications_running=False)
    wait_until_ready(APPLICATION, OwnPort(settings.host, settings.port), say)
