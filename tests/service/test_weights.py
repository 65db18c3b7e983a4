"""Weights that are updated under load in two real replicas: nothing is lost, and a new replica has the new ones."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.other_weights import other_weights
from tests.service.processes import processes_of
from tests.service.reading import Streamed, by_holder, eventually, sample, until, whole
from tests.service.running import GOLDEN, Service

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
WEIGHTS, ADMIN = "/admin/weights", {"authorization": "Bearer boss"}
LONG = {"prompt_token_ids": [1, 2, 3], "max_new_tokens": 120, "mode": "static", "ignore_eos": True}
#: seconds that a forward takes longer, so that requests are in progress
SLOW = 0.02


def give(client: httpx.Client, model: Path) -> dict[str, Any]:
    response = client.post(WEIGHTS, json={"model": str(model)}, headers=ADMIN)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def versions(client: httpx.Client) -> list[int]:
    return [one["version"] for one in client.get(WEIGHTS, headers=ADMIN).json()["replicas"]]


def test_weights_are_updated_under_load_and_a_new_replica_has_them(
    visitor: httpx.Client, house: Service, tmp_path: Path
) -> None:
    other = other_weights(tmp_path / "step-7", GOLDEN)
    old = whole(visitor, LONG)
    house.pace.slow(SLOW)
    try:
        with ThreadPoolExecutor(24) as pool, house.pace.released():
            streams = [Streamed(visitor, LONG) for _ in range(6)]
            before = [pool.submit(stream.read) for stream in streams]
            assert all(stream.began.wait(60) for stream in streams)
            eventually(lambda: all(by_holder(visitor, "num_requests_running").values()), "a replica is idle")
            change = pool.submit(give, visitor, other)
            time.sleep(0.3)
            during = [pool.submit(whole, visitor, LONG) for _ in range(6)]
            assert [one.result() for one in before] == [old] * 6
            told = change.result()
            house.pace.full()
            new = whole(visitor, LONG)
            assert new != old
            assert all(one.result() in (old, new) for one in during)
        assert [one["version"] for one in told["replicas"]] == [told["version"]] * 2
        print(f"seconds of the update: {[one['seconds'] for one in told['replicas']]}")  # noqa: T201 - shown by -s
        a_new_replica_has_them(visitor, house, told["version"], new)
    finally:
        house.pace.full()
        until(visitor, 200, replicas=2)
        give(visitor, GOLDEN)
    assert whole(visitor, LONG) == old


def a_new_replica_has_them(visitor: httpx.Client, house: Service, version: int, new: Any) -> None:
    """No request is answered by the weights with which it starts."""
    dead = processes_of(house, "Generator")[0]
    os.kill(dead, signal.SIGKILL)
    asked = 0
    deadline = time.monotonic() + 90
    while versions(visitor) != [version] * 2 or dead in processes_of(house, "Generator"):
        assert time.monotonic() < deadline, versions(visitor)
        assert whole(visitor, LONG) == new
        asked += 1
    with ThreadPoolExecutor(16) as pool:
        assert [one.result() for one in [pool.submit(whole, visitor, LONG) for _ in range(16)]] == [new] * 16
    eventually(lambda: len(by_holder(visitor, "weights_version")) >= 2, "a replica is missing")
    assert set(by_holder(visitor, "weights_version").values()) >= {float(version)}
    print(f"{asked} requests while it started, refused {sample(visitor, 'request_failovers_total')}")  # noqa: T201


@pytest.mark.parametrize(("stop", "go"), [("pause", "continue"), ("sleep", "wake_up")])
def test_a_replica_that_is_lost_while_the_service_stands(
    visitor: httpx.Client, house: Service, stop: str, go: str
) -> None:
    """Its requests wait at the other replica, and the new replica stands, too. Serve replaces no other replica."""
    wanted = whole(visitor, LONG)
    house.pace.slow(SLOW)
    with ThreadPoolExecutor(24) as pool, house.pace.released():
        before = [pool.submit(whole, visitor, LONG) for _ in range(6)]
        eventually(lambda: sample(visitor, "num_requests_running") > 0, "no request runs")
        try:
            answer = visitor.post(f"/admin/{stop}", json={}, headers=ADMIN)
            assert answer.status_code == 200, answer.text
            house.pace.full()
            during = [pool.submit(whole, visitor, LONG) for _ in range(6)]
            eventually(lambda: sample(visitor, "num_requests_waiting") >= 6, "requests do not wait")
            counts = by_holder(visitor, "num_requests_running")
            dead, other = sorted(
                processes_of(house, "Generator"), key=lambda process: -counts[house.pace.name_of(process)]
            )
            os.kill(dead, signal.SIGKILL)
            eventually(lambda: dead not in processes_of(house, "Generator"), "the replica lives")
            until(visitor, 200, replicas=2)
            eventually(lambda: standing(visitor) == [True, True], "the new replica goes on", 30)
            assert other in processes_of(house, "Generator")
            assert not any(one.done() for one in during)
        finally:
            answer = visitor.post(f"/admin/{go}", headers=ADMIN)
        assert answer.status_code == 200, answer.text
        assert [one.result() for one in (*before, *during)] == [wanted] * 12


def standing(client: httpx.Client) -> list[bool]:
    states = client.get("/admin/generation", headers=ADMIN).json()["replicas"]
    return [one["paused"] or one["sleep_level"] > 0 for one in states]
