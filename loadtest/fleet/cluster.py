"""Ray, the real ingresses and simulated replicas on this machine, and the cost of their processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from loadtest.fleet.clock import Speed
from loadtest.harness import free_port
from service.settings import Settings

#: part of a process's command line -> its role
_ROLES = {
    "ServeReplica:mrp:Ingress": "ingress",
    "ServeReplica:mrp:Generator": "replicas",
    "ProxyActor": "proxy",
    "ServeController": "controller",
    "gcs_server": "ray",
    "raylet": "ray",
    "ray": "ray",
}


class Fleet:
    """A running service: its `url` and its replicas."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.url = f"http://127.0.0.1:{settings.port}"

    def resize(self, replicas: int) -> None:
        """Sets the number of replicas. Returns when they serve."""
        from loadtest.fleet.replica import ClockDeployment
        from service.app import compose
        from service.cli import cluster

        settings = self._settings.model_copy(update={"num_replicas": replicas})
        cluster.deploy(settings, compose(settings, ClockDeployment))

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """Every process that Ray has started here, each with its role."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            role = next((role for part, role in _ROLES.items() if part in line), None)
            if role:
                found.append((role, process))
        return found

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds by role since the start."""
        total = dict.fromkeys(_ROLES.values(), 0.0)
        for role, process in self.processes():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total[role] += times.user + times.system
        return total

    def memory_mib(self) -> dict[str, float]:
        """Resident memory of the largest process of each role."""
        most = dict.fromkeys(_ROLES.values(), 0.0)
        for role, process in self.processes():
            try:
                most[role] = max(most[role], process.memory_info().rss / 2**20)
            except psutil.Error:
                continue
        return most


@contextmanager
def fleet(speed: Speed, most_replicas: int, **settings: object) -> Iterator[Fleet]:
    """The service with these settings, at first without replicas."""
    from service.cli import cluster

    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # else Ray starts a process for every assumed CPU
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default is 15; the clients, which share the cores, have 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clock.json"
        speed.save(path)
        made = Settings(model=str(path), served_model_name="clock", device="cpu", port=free_port(), **settings)
        cluster.start(made, num_cpus=most_replicas + 1)
        try:
            yield Fleet(made)
        finally:
            cluster.stop()
