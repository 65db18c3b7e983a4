"""Errors of the start of Ray and Serve, without Ray."""

from contextlib import nullcontext
from queue import SimpleQueue

import pytest
from ray import serve

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

    for variables in ("ENVIRONMENT", "PROGRAM_ENVIRONMENT"):
        monkeypatch.setattr(cluster, variables, {})
    monkeypatch.setattr(cluster, "leave_proxies_out", lambda: None)
    monkeypatch.setattr(preflight, "check_room", lambda _: None)
    for function in ("start_ray", "_start_serve"):
        monkeypatch.setattr(cluster, function, fail if function.endswith(part) else lambda *_: None)
    with pytest.raises(SettingsError, match=f"^{message}"):
        cluster.begin(Settings(device="cpu", api_server_count=2), print)


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_proxies_that_serve_gave_up_waiting_for_are_waited_for(monkeypatch: pytest.MonkeyPatch, slow: int) -> None:
    """Serve then runs already, and a second call finds it."""
    starts = []

    def start(**options: object) -> None:
        starts.append(options)
        if len(starts) <= slow:
            raise TimeoutError("HTTP proxies not available after 60s.")

    monkeypatch.setattr(serve, "start", start)
    with pytest.raises(TimeoutError) if slow > 1 else nullcontext():
        cluster._start_serve(Settings(device="cpu", api_server_count=2), talkative=True)
    assert len(starts) == min(slow, 1) + 1
    assert starts[0] == starts[-1]


def test_a_part_that_starts_slowly_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_QUIET_S", 0.0)
    lines: SimpleQueue[str] = SimpleQueue()
    with cluster._starting("Ray", lines.put):
        assert lines.get(timeout=120) == "waiting for the processes of Ray …"
    monkeypatch.setattr(cluster, "_QUIET_S", 1e6)
    with cluster._starting("Serve", lines.put):
        pass
    assert lines.empty()
