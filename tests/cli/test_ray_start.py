"""The start of Ray on a slow machine, with doubles of Ray's own functions and in virtual time."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import node, services

from service.cli import ray_start
from service.errors import SettingsError
from tests.clock import Clock

#: seconds that Ray's loop in `node.py` waits
_RAYS_OWN_S = 30.0
_POLL_S = 10.0


@pytest.fixture(autouse=True)
def slow_clock(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Clock:
    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(ray_start, "_POLL_S", _POLL_S)
    monkeypatch.setattr(ray_start, "time", SimpleNamespace(monotonic=clock, sleep=sleep))
    return clock


def registers_at(monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: float) -> list[dict[str, Any]]:
    """Makes `ray.init` wait as Ray does, for a raylet that registers at a time. Returns the starts."""
    starts: list[dict[str, Any]] = []

    def get_node(address: str, node: str) -> dict[str, str]:
        if clock() < seconds:
            raise RuntimeError("no node info")
        return {"address": address, "node": node}

    def init(**options: Any) -> None:
        starts.append(options)
        since = clock()
        while True:
            try:
                assert services.get_node("a", "n") == {"address": "a", "node": "n"}
                return
            except RuntimeError:
                if clock() - since > _RAYS_OWN_S:
                    raise Exception("The current node timed out during startup.") from None

    monkeypatch.setattr(services, "get_node", get_node)
    monkeypatch.setattr(ray, "init", init)
    return starts


@pytest.mark.parametrize("seconds", [0.0, 31.0, 500.0])
def test_ray_that_is_slow_to_start_is_started_once(
    monkeypatch: pytest.MonkeyPatch, slow_clock: Clock, seconds: float
) -> None:
    starts = registers_at(monkeypatch, slow_clock, seconds)
    get_node = services.get_node
    ray_start.start_ray(3)
    assert [start["num_cpus"] for start in starts] == [3]
    assert seconds <= slow_clock() < seconds + _POLL_S
    assert services.get_node is get_node


def test_ray_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch, slow_clock: Clock) -> None:
    starts = registers_at(monkeypatch, slow_clock, 1e9)
    with pytest.raises(Exception, match="timed out during startup"):
        ray_start.start_ray(1)
    assert len(starts) == 1
    assert ray_start.PATIENCE_S <= slow_clock() <= ray_start.PATIENCE_S + _POLL_S


@pytest.fixture(params=["gcs_server", "raylet"])
def ended(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A process of that name that has ended, and is a child of this one."""
    (tmp_path / request.param).symlink_to("/bin/true")
    with subprocess.Popen([tmp_path / request.param]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield f"{request.param} (process {process.pid}) has ended"


def test_a_process_of_ray_that_ends_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, slow_clock: Clock, ended: str
) -> None:
    registers_at(monkeypatch, slow_clock, 1e9)
    with pytest.raises(SettingsError, match=ended.replace("(", r"\(").replace(")", r"\)")):
        ray_start.start_ray(1)
    assert slow_clock() == 0


def test_the_port_of_the_gcs_is_waited_for_in_parts(monkeypatch: pytest.MonkeyPatch, slow_clock: Clock) -> None:
    waits: list[int] = []

    def wait_for_port(folder: str, timeout_ms: int) -> int:
        waits.append(timeout_ms)
        if len(waits) < 40:
            raise RuntimeError(f"Timed out waiting for file {folder}")
        return 6379

    ports: list[int] = []
    monkeypatch.setattr(ray, "init", lambda **_: ports.append(node.wait_for_persisted_port("f", timeout_ms=600_000)))
    monkeypatch.setattr(node, "wait_for_persisted_port", wait_for_port)
    ray_start.start_ray(1)
    assert ports == [6379]
    assert waits == [ray_start.PART_MS] * 40


def test_the_raylet_and_its_agents_know_their_ports_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[list[str], str]] = []
    seen_ports: list[dict[str, int]] = []

    def init(**_: Any) -> None:
        services.start_raylet("name", runtime_env_agent_port=0, plasma="p")  # type: ignore[call-arg]
        services.start_ray_process(["gcs"], "gcs_server")

    def start_raylet(name: str, plasma: str, **ports: int) -> None:
        seen_ports.append(ports)
        services.start_ray_process([name, plasma], "raylet")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(services, "start_raylet", start_raylet)
    monkeypatch.setattr(services, "start_ray_process", lambda *call: commands.append(call))
    ray_start.start_ray(1)
    [ports] = seen_ports
    assert set(ports) == set(ray_start.PORTS)
    assert len(set(ports.values())) == 4
    flag = f"--dashboard_agent_listen_port={ports['dashboard_agent_listen_port']}"
    assert commands == [(["name", "p", flag], "raylet"), (["gcs"], "gcs_server")]


def test_a_reserved_port_is_nobody_elses_but_can_be_listened_on() -> None:
    port = ray_start._reserved_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)) as agent:  # with SO_REUSEADDR, as asyncio's and gRPC's
        socket.create_connection(agent.getsockname()).close()
