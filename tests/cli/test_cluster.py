"""Serve's proxy starts while the application is deployed: when deployment goes on, and errors. Without Ray."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve

from service.cli import cluster, readiness
from service.errors import SettingsError
from service.settings.settings import Settings

SETTINGS = Settings(device="cpu", api_server_count=2)  # behind a proxy
#: as Ray shows an exception of another process
BIND = """\x1b[36mray::ProxyActor.ready()\x1b[39m (pid=1, ip=127.0.0.1)
  File "ray/serve/_private/http_util.py", line 1, in start
    raise RuntimeError(message)
RuntimeError: Failed to bind to address '127.0.0.1:8000'."""


class FakeRay:
    """Stands for Ray. `step`: called when Serve is started. `proxies`: the proxies that its controller knows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proxies: dict[str, str] = {}
        self.step: Any = lambda: None
        self.deployed = 0
        monkeypatch.setattr(cluster, "_POLL_S", 0)
        for variables in ("ENVIRONMENT", "_PROGRAM_ENVIRONMENT"):
            monkeypatch.setattr(cluster, variables, {})
        monkeypatch.setattr(cluster, "_start_ray", lambda *_: None)
        monkeypatch.setattr(cluster, "_check_room", lambda _: None)
        monkeypatch.setattr(cluster, "_start_serve", lambda *_: self.step())
        monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(proxies=self.proxies))
        monkeypatch.setattr(serve, "run_many", self._deploy)
        monkeypatch.setattr(readiness, "wait_until_running", lambda name, say: None)

    def _deploy(self, targets: list[Any], wait_for_applications_running: bool) -> None:
        assert not wait_for_applications_running
        self.deployed += len(targets)


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return FakeRay(monkeypatch)


def test_a_deployment_does_not_wait_for_the_proxy(fake_ray: FakeRay) -> None:
    ready = threading.Event()

    def start() -> None:
        fake_ray.proxies = {"node": "STARTING"}
        assert ready.wait(60)

    fake_ray.step = start
    proxy = cluster.begin(SETTINGS)
    assert not proxy.done()
    ready.set()
    cluster.deploy(SETTINGS, proxy=proxy)
    assert proxy.done()
    assert fake_ray.deployed == 1


def test_a_proxy_that_cannot_start_fails_the_deployment(fake_ray: FakeRay) -> None:
    proxy_known = threading.Event()

    def start() -> None:
        fake_ray.proxies = {"node": "STARTING"}
        assert proxy_known.wait(60)
        raise RuntimeError(BIND)

    fake_ray.step = start
    proxy = cluster.begin(SETTINGS)
    proxy_known.set()
    with pytest.raises(SettingsError) as failure:
        cluster.deploy(SETTINGS, proxy=proxy)
    assert failure.value.message == "Serve did not start: RuntimeError: Failed to bind to address '127.0.0.1:8000'."


def test_serve_that_does_not_start_at_all(fake_ray: FakeRay) -> None:
    def start() -> None:
        raise TimeoutError("HTTP proxies not available after 60s.\nmore")

    fake_ray.step = start
    with pytest.raises(SettingsError) as failure:
        cluster.begin(SETTINGS)
    assert failure.value.message == "Serve did not start: TimeoutError: HTTP proxies not available after 60s."


def test_ray_that_does_not_start(fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/nowhere")

    monkeypatch.setattr(cluster, "_start_ray", init)
    with pytest.raises(SettingsError, match=r"^Ray did not start: FileNotFoundError: .*'/nowhere'$"):
        cluster.begin(SETTINGS)


@pytest.mark.parametrize(("slow", "attempts"), [(2, 3), (99, cluster._ATTEMPTS)])
def test_ray_that_is_slow_to_start_is_started_again(monkeypatch: pytest.MonkeyPatch, slow: int, attempts: int) -> None:
    tries = []

    def init(*_: object) -> None:
        tries.append(1)
        if len(tries) <= slow:
            raise Exception("The current node timed out during startup. This could happen because …")

    monkeypatch.setattr(cluster, "_init_ray", init)
    with pytest.raises(Exception, match="timed out") if slow > attempts else nullcontext():
        cluster._start_ray(1, talkative=False)
    assert len(tries) == attempts
