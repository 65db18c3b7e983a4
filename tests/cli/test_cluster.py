"""Errors of the start of Ray and Serve, without Ray."""

from contextlib import nullcontext

import pytest
import ray

from service.cli import cluster, preflight
from service.errors import SettingsError
from service.settings.settings import Settings

#: as Ray shows an exception of another process
BIND = """\x1b[36mray::ProxyActor.ready()\x1b[39m (pid=1, ip=127.0.0.1)
  File "ray/serve/_private/http_util.py", line 1, in start
    raise RuntimeError(message)
RuntimeError: cannot bind to '127.0.0.1:8000'."""


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        ("ray", FileNotFoundError(2, "No such file", "/x"), "Ray did not start: FileNotFoundError: .* '/x'$"),
        ("serve", RuntimeError(BIND), "Serve did not start: RuntimeError: cannot bind to '127.0.0.1:8000'.$"),
        ("serve", TimeoutError("no proxy after 60s.\nmore"), "Serve did not start: TimeoutError: no proxy after 60s.$"),
    ],
)
def test_an_error_of_the_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, part: str, error: Exception, message: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    for variables in ("ENVIRONMENT", "_PROGRAM_ENVIRONMENT"):
        monkeypatch.setattr(cluster, variables, {})
    monkeypatch.setattr(preflight, "check_room", lambda _: None)
    for function in ("_start_ray", "_start_serve"):
        monkeypatch.setattr(cluster, function, fail if function == f"_start_{part}" else lambda *_: None)
    with pytest.raises(SettingsError, match=f"^{message}"):
        cluster.begin(Settings(device="cpu", api_server_count=2))


@pytest.mark.parametrize(("slow", "attempts"), [(2, 3), (99, cluster._ATTEMPTS)])
def test_ray_that_is_slow_to_start_is_started_again(monkeypatch: pytest.MonkeyPatch, slow: int, attempts: int) -> None:
    tries = []

    def init(**_: object) -> None:
        tries.append(1)
        if len(tries) <= slow:
            raise Exception("The current node timed out during startup. This could happen because …")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(Exception, match="timed out") if slow > attempts else nullcontext():
        cluster._start_ray(1, talkative=False)
    assert len(tries) == attempts
