"""Starts Ray on this machine, for a service (`cluster.py`) or a training. A slow machine has minutes for it.

Ray's own limits are 15 and 30 s, and some cannot be set. A machine that needs longer would never start, however often
it began anew. Here Ray's processes have `PATIENCE_S` as long as they run. If one ends, the start fails at once.
`tests/test_ray_version.py` holds what is replaced in Ray.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any

import psutil

from service.errors import SettingsError

#: seconds for Ray's processes to start
PATIENCE_S = 600
#: variables of the limits that can be set, for this program and all that it starts
LIMITS = {
    "RAY_gcs_server_port_wait_time_s": str(PATIENCE_S),
    "RAY_agent_register_timeout_ms": str(PATIENCE_S * 1000),
    "RAY_worker_register_timeout_seconds": str(PATIENCE_S),
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(PATIENCE_S),
}
#: the ports of the raylet's agents. The raylet waits 15 s for one that is 0.
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
_OBJECT_STORE_BYTES = 200 * 2**20
_POLL_S = 0.1
#: milliseconds of one wait for the port of Ray's GCS
PART_MS = 1000


def start_ray(num_cpus: int | None, talkative: bool = False) -> None:
    """Starts Ray on loopback, without its dashboard. `talkative`: prints what it logs."""
    for name, value in LIMITS.items():
        os.environ.setdefault(name, value)
    import ray

    node, services = (import_module(f"ray._private.{name}") for name in ("node", "services"))
    ports = {name: _reserved_port() for name in PORTS}
    with (
        _replaced(node, "wait_for_persisted_port", _patient_in_parts),
        _replaced(services, "get_node", _patient),
        _replaced(services, "start_raylet", partial(_with_ports, ports)),
        _replaced(services, "start_ray_process", partial(_with_flag, ports)),
    ):
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            log_to_driver=talkative,
            logging_level=logging.INFO if talkative else logging.ERROR,
        )


@contextmanager
def _replaced(module: Any, name: str, replace: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, replace(original))
    try:
        yield
    finally:
        setattr(module, name, original)


def _patient(look: Callable[..., Any]) -> Callable[..., Any]:
    """Waits for what a function of Ray looks for. It raises RuntimeError until there is something."""

    def wait(*arguments: Any, **options: Any) -> Any:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return look(*arguments, **options)
            except RuntimeError:
                if ended := _ended():
                    raise SettingsError(f"{ended} has ended") from None
                if time.monotonic() > until:
                    raise
            time.sleep(_POLL_S)

    return wait


def _patient_in_parts(wait: Callable[..., Any]) -> Callable[..., Any]:
    """As `_patient`, for a function that itself waits for long and does not see that a process has ended."""
    return _patient(lambda *arguments, **options: wait(*arguments, **options | {"timeout_ms": PART_MS}))


def _ended() -> str:
    """The name of one of Ray's two central processes that has ended. Empty if both run."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if child.name() in {"gcs_server", "raylet"} and child.status() == psutil.STATUS_ZOMBIE:
                return f"{child.name()} (process {child.pid})"
    return ""


def _with_ports(ports: dict[str, int], start: Callable[..., Any]) -> Callable[..., Any]:
    """Tells the raylet and its agents their ports."""
    return lambda *arguments, **options: start(*arguments, **options | ports)


def _with_flag(ports: dict[str, int], start: Callable[..., Any]) -> Callable[..., Any]:
    """Tells the raylet the one of these ports that Ray tells the agent alone."""

    def start_told(command: list[str], kind: str, *arguments: Any, **options: Any) -> Any:
        name = "dashboard_agent_listen_port"
        return start(
            [*command, f"--{name}={ports[name]}"] if kind == "raylet" else command, kind, *arguments, **options
        )

    return start_told


def _reserved_port() -> int:
    """A free port, which the system gives to nobody who does not name it while this process runs."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that one of Ray's processes can listen there
    holder.bind(("", 0))
    port: int = holder.getsockname()[1]
    holder.detach()  # it stays open
    return port
