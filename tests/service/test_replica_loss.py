"""Replicas that die or hang, and ingresses: answers are those of a quiet run; an ingress breaks its connections.

Forwards are slow while requests come. Then no forward is made until the signal is sent, so all requests are in progress
at that time.
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from tests.service.processes import processes_of
from tests.service.reading import Outcome, Streamed, by_holder, eventually, sample, until, whole
from tests.service.running import Service

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
LONG = {"prompt_token_ids": [1, 2, 3], "max_new_tokens": 200, "temperature": 0.7, "seed": 3, "ignore_eos": True}
MODES = ("static", "speculative", "remask")
REQUESTS = [{**LONG, "seed": seed, "mode": MODES[seed % 3]} for seed in range(8)]
#: seconds that a forward takes longer: the answer with the fewest forwards takes some seconds then
SLOW = 0.1


@pytest.fixture(scope="module")
def expected() -> dict[int, Outcome]:
    return {}


def undisturbed(client: httpx.Client, expected: dict[int, Outcome], request: dict[str, Any]) -> Outcome:
    if request["seed"] not in expected:
        expected[request["seed"]] = whole(client, request)
    return expected[request["seed"]]


def failovers(client: httpx.Client) -> float:
    return sample(client, "request_failovers_total")


def hit_one_of_two(client: httpx.Client, pair: Service, number: int, expected: dict[int, Outcome]) -> float:
    """Sends the signal to a replica while streams and whole answers are decoded; the longest pause of a stream."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(partial(undisturbed, client, expected), REQUESTS))
    before = failovers(client)
    pair.pace.slow(SLOW)
    streams = [Streamed(client, request) for request in REQUESTS]
    with ThreadPoolExecutor(16) as pool, pair.pace.released():
        streamed = [pool.submit(stream.read) for stream in streams]
        unary = [pool.submit(whole, client, request) for request in REQUESTS]
        assert all(stream.began.wait(60) for stream in streams)
        eventually(lambda: sample(client, "num_requests_running") == 16, "16 requests never ran at once")
        running = by_holder(client, "num_requests_running")
        named = {process: pair.pace.name_of(process) for process in processes_of(pair, "Generator")}
        busiest = max((process for process in named if named[process]), key=lambda process: running[named[process]])
        pair.pace.hold()
        os.kill(busiest, number)
        pair.pace.full()
        assert [future.result() for future in streamed] == answers
        assert [future.result() for future in unary] == answers
    assert failovers(client) > before
    return max(stream.pause for stream in streams)


def test_one_of_two_replicas_dies_and_no_request_notices(
    pair_client: httpx.Client, pair: Service, expected: dict[int, Outcome]
) -> None:
    assert hit_one_of_two(pair_client, pair, signal.SIGKILL, expected) < 30


@pytest.mark.slow
def test_one_of_two_replicas_hangs_and_no_request_fails(
    pair_client: httpx.Client, pair: Service, expected: dict[int, Outcome]
) -> None:
    assert hit_one_of_two(pair_client, pair, signal.SIGSTOP, expected) < 60


@pytest.mark.slow
def test_all_replicas_die_and_a_stream_goes_on_with_the_next(
    pair_client: httpx.Client, pair: Service, expected: dict[int, Outcome]
) -> None:
    request = REQUESTS[1]
    answer, before = undisturbed(pair_client, expected, request), failovers(pair_client)
    pair.pace.slow(SLOW)
    stream = Streamed(pair_client, request)
    with ThreadPoolExecutor(1) as pool, pair.pace.released():
        streamed = pool.submit(stream.read)
        assert stream.began.wait(60)
        pair.pace.hold()  # no replica comes up meanwhile either
        dead = processes_of(pair, "Generator")
        for replica in dead:
            os.kill(replica, signal.SIGKILL)
        # each of the two ingresses has to notice it before it refuses a request
        eventually(
            lambda: all(pair_client.get("/health").status_code == 503 for _ in range(20)),
            "an ingress still reports replicas",
        )
        health = pair_client.get("/health")
        assert health.json()["error"]["code"] == "not_ready"
        assert "no replica can generate" in health.json()["error"]["message"]
        refused = pair_client.post("/generate", json=request)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert int(refused.headers["retry-after"]) >= 1
        pair.pace.full()
        assert streamed.result() == answer
    until(pair_client, 200, replicas=2)
    assert not set(dead) & set(processes_of(pair, "Generator"))
    assert failovers(pair_client) > before


def ended(stream: Streamed) -> bool:
    """Whether a stream came to its end; False: the proxy said that its ingress was lost."""
    try:
        return bool(stream.read())
    except AssertionError:
        name, data = stream.last
        assert (name, data["error"]["code"]) == ("error", "ingress_lost")
        return False


def test_a_dead_ingress_ends_its_own_streams_with_an_error_and_no_others(
    pair_client: httpx.Client, pair: Service
) -> None:
    eventually(lambda: len(by_holder(pair_client, "queue_blocks_left")) == 2, "two ingresses never came")
    pair.pace.slow(SLOW)
    streams, reading = list[Streamed](), []
    with ThreadPoolExecutor(32) as pool, pair.pace.released():
        while not streams or not all(by_holder(pair_client, "queue_blocks_left").values()):
            assert len(streams) < 32, "all requests come to one ingress"
            streams += [Streamed(pair_client, {**LONG, "mode": "static"}) for _ in range(4)]
            reading += [pool.submit(ended, stream) for stream in streams[-4:]]
            assert all(stream.began.wait(60) for stream in streams)
        pair.pace.hold()
        os.kill(processes_of(pair, "Ingress")[0], signal.SIGKILL)
        pair.pace.full()
        eventually(lambda: pair_client.post("/generate", json=LONG).status_code == 200, "no ingress answers")
        outcomes = {future.result() for future in reading}
    assert outcomes == {True, False}
    eventually(lambda: len(by_holder(pair_client, "queue_blocks_left")) == 2, "the ingress was not replaced")
    eventually(lambda: sample(pair_client, "num_requests_running") == 0, "requests of the dead ingress go on")
