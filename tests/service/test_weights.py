"""Weights that are updated under load in two real replicas: nothing is lost, and a new replica has the new ones."""

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


def update(client: httpx.Client, model: Path) -> dict[str, Any]:
    response = client.post(WEIGHTS, json={"model": str(model)}, headers=ADMIN)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def versions(client: httpx.Client) -> list[int]:
    return [row["version"] for row in client.get(WEIGHTS, headers=ADMIN).json()["replicas"]]


def test_weights_are_updated_under_load_and_a_new_replica_has_them(
    pair_client: httpx.Client, pair: Service, tmp_path: Path
) -> None:
    other = other_weights(tmp_path / "step-7", GOLDEN)
    old = whole(pair_client, LONG)
    pair.pace.slow(SLOW)
    try:
        with ThreadPoolExecutor(24) as pool, pair.pace.released():
            streams = [Streamed(pair_client, LONG) for _ in range(6)]
            before = [pool.submit(stream.read) for stream in streams]
            assert all(stream.began.wait(60) for stream in streams)
            eventually(lambda: all(by_holder(pair_client, "num_requests_running").values()), "a replica is idle")
            change = pool.submit(update, pair_client, other)
            time.sleep(0.3)
            during = [pool.submit(whole, pair_client, LONG) for _ in range(6)]
            assert [future.result() for future in before] == [old] * 6
            answer = change.result()
            pair.pace.full()
            new = whole(pair_client, LONG)
            assert new != old
            assert all(future.result() in (old, new) for future in during)
        assert [row["version"] for row in answer["replicas"]] == [answer["version"]] * 2
        assert_a_new_replica_has_them(pair_client, pair, answer["version"], new)
    finally:
        pair.pace.full()
        until(pair_client, 200, replicas=2)
        update(pair_client, GOLDEN)
    assert whole(pair_client, LONG) == old


def assert_a_new_replica_has_them(pair_client: httpx.Client, pair: Service, version: int, new: Any) -> None:
    """No request is answered by the weights with which it starts."""
    dead = processes_of(pair, "Generator")[0]
    os.kill(dead, signal.SIGKILL)
    deadline = time.monotonic() + 90
    while versions(pair_client) != [version] * 2 or dead in processes_of(pair, "Generator"):
        assert time.monotonic() < deadline, versions(pair_client)
        assert whole(pair_client, LONG) == new
    with ThreadPoolExecutor(16) as pool:
        assert [future.result() for future in [pool.submit(whole, pair_client, LONG) for _ in range(16)]] == [new] * 16
    eventually(lambda: len(by_holder(pair_client, "weights_version")) >= 2, "a replica is missing")
    assert set(by_holder(pair_client, "weights_version").values()) >= {float(version)}


@pytest.mark.parametrize(("stop", "go"), [("pause", "continue"), ("sleep", "wake_up")])
def test_a_replica_that_is_lost_while_the_service_stands(
    pair_client: httpx.Client, pair: Service, stop: str, go: str
) -> None:
    """Its requests wait at the other replica, and the new replica stands, too. Serve replaces no other replica."""
    wanted = whole(pair_client, LONG)
    pair.pace.slow(SLOW)
    with ThreadPoolExecutor(24) as pool, pair.pace.released():
        before = [pool.submit(whole, pair_client, LONG) for _ in range(6)]
        eventually(lambda: sample(pair_client, "num_requests_running") > 0, "no request runs")
        try:
            answer = pair_client.post(f"/admin/{stop}", json={}, headers=ADMIN)
            assert answer.status_code == 200, answer.text
            pair.pace.full()
            during = [pool.submit(whole, pair_client, LONG) for _ in range(6)]
            eventually(lambda: sample(pair_client, "num_requests_waiting") >= 6, "requests do not wait")
            counts = by_holder(pair_client, "num_requests_running")
            dead, other = sorted(
                processes_of(pair, "Generator"), key=lambda process: -counts[pair.pace.name_of(process)]
            )
            os.kill(dead, signal.SIGKILL)
            eventually(lambda: dead not in processes_of(pair, "Generator"), "the replica lives")
            until(pair_client, 200, replicas=2)
            eventually(lambda: halted(pair_client) == [True, True], "the new replica goes on", 30)
            assert other in processes_of(pair, "Generator")
            assert not any(future.done() for future in during)
        finally:
            answer = pair_client.post(f"/admin/{go}", headers=ADMIN)
        assert answer.status_code == 200, answer.text
        assert [future.result() for future in (*before, *during)] == [wanted] * 12


def halted(client: httpx.Client) -> list[bool]:
    states = client.get("/admin/generation", headers=ADMIN).json()["replicas"]
    return [row["paused"] or row["sleep_level"] > 0 for row in states]
