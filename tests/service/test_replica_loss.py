"""Replicas that die or hang, and ingresses: answers are those of a quiet run; an ingress breaks its connections."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.service.processes import processes_of
from tests.service.test_serve import eventually, holders, sample

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]
LONG = {"prompt_token_ids": [1, 2, 3], "max_new_tokens": 400, "temperature": 0.7, "seed": 3, "ignore_eos": True}
MODES = ("static", "speculative", "remask")


def replicas_of(service):
    """The processes of the model among those the service started."""
    return processes_of(service, "Generator")


def until(client, status, replicas=1):
    """Polls /health until it has that status, and as many replicas if it is 200."""
    deadline = time.monotonic() + 90
    while True:
        health = client.get("/health")
        if health.status_code == status and health.json().get("replicas_ready", replicas) == replicas:
            return health
        assert time.monotonic() < deadline, health.text
        time.sleep(0.1)


class Streamed:
    """A stream read on a thread: its answer, and the longest time between two of its lines."""

    def __init__(self, client, request):
        self.began, self.pause = threading.Event(), 0.0
        self._client, self._request = client, request

    def read(self):
        """The tokens and the ending of the whole stream."""
        tokens, name, last = [], None, time.monotonic()
        with self._client.stream("POST", "/generate", json={**self._request, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                now = time.monotonic()
                self.pause, last = max(self.pause, now - last), now
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    data = json.loads(line.removeprefix("data: "))
                    assert name in {"block", "done"}, data
                    tokens += data.get("token_ids", ())
                    self.began.set()
        assert name == "done"
        return tokens, data["finish_reason"], data["usage"]


def whole(client, request):
    """The same of a whole answer."""
    response = client.post("/generate", json=request)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["token_ids"], answer["finish_reason"], answer["usage"]


def failovers(client):
    """How many attempts at requests were made again."""
    return sample(client, "request_failovers_total")


def hit_one_of_two(client, service, number):
    """Sends the signal to a replica while streams and whole answers are decoded; the longest pause of a stream."""
    requests = [{**LONG, "seed": seed, "mode": mode} for seed, mode in zip(range(8), MODES * 4, strict=False)]
    expected = [whole(client, request) for request in requests]
    until(client, 200, 2)
    before = failovers(client)
    streams = [Streamed(client, request) for request in requests]
    with ThreadPoolExecutor(16) as pool:
        streamed = [pool.submit(stream.read) for stream in streams]
        unary = [pool.submit(whole, client, request) for request in requests]
        assert all(stream.began.wait(60) for stream in streams)
        os.kill(replicas_of(service)[0], number)
        assert [future.result() for future in streamed] == expected
        assert [future.result() for future in unary] == expected
    assert failovers(client) > before
    pause = max(stream.pause for stream in streams)
    print(f"longest pause after signal {number} to one of two replicas: {pause:.1f} s")  # noqa: T201 - shown by -s
    return pause


def test_the_only_replica_dies_and_its_stream_goes_on_with_the_next(client, service):
    request = {**LONG, "mode": "speculative"}
    expected = whole(client, request)
    stream = Streamed(client, request)
    with ThreadPoolExecutor(1) as pool:
        streamed = pool.submit(stream.read)
        assert stream.began.wait(60)
        [replica] = replicas_of(service)
        os.kill(replica, signal.SIGKILL)
        health = until(client, 503)
        assert health.json()["error"]["code"] == "not_ready"
        assert "no replica can generate" in health.json()["error"]["message"]
        refused = client.post("/generate", json=request)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert int(refused.headers["retry-after"]) >= 1
        assert streamed.result() == expected
    print(f"longest pause after the only replica was killed: {stream.pause:.1f} s")  # noqa: T201 - shown by -s
    until(client, 200)
    assert replicas_of(service) != [replica]
    assert failovers(client) == 1


def test_one_of_two_replicas_dies_and_no_request_notices(pair):
    service, client = pair
    assert hit_one_of_two(client, service, signal.SIGKILL) < 30


def test_one_of_two_replicas_hangs_and_no_request_fails(pair):
    service, client = pair
    assert hit_one_of_two(client, service, signal.SIGSTOP) < 60


def ended(stream):
    """Whether a stream came to its end; False: its connection broke."""
    try:
        return bool(stream.read())
    except httpx.RemoteProtocolError:
        return False


def test_a_dead_ingress_takes_its_own_connections_with_it_and_no_others(pair):
    service, client = pair
    eventually(lambda: len(holders(client, "queue_blocks_left")) == 2, "two ingresses never came")
    streams = [Streamed(client, {**LONG, "max_new_tokens": 1000, "mode": "static"}) for _ in range(12)]
    with ThreadPoolExecutor(12) as pool:
        reading = [pool.submit(ended, stream) for stream in streams]
        assert all(stream.began.wait(60) for stream in streams)
        assert all(sample(client, "queue_blocks_left", replica=name) for name in holders(client, "queue_blocks_left"))
        victim, _ = processes_of(service, "Ingress")
        os.kill(victim, signal.SIGKILL)
        statuses = []
        eventually(lambda: statuses.append(client.post("/generate", json=LONG).status_code) or 200 in statuses, "none")
        outcomes = {future.result() for future in reading}
    print(f"requests after the end of an ingress: {statuses}")  # noqa: T201 - shown by -s
    assert outcomes == {True, False}
    eventually(lambda: len(holders(client, "queue_blocks_left")) == 2, "the ingress was not replaced", 60)
    eventually(lambda: sample(client, "num_requests_running") == 0, "requests of the dead ingress go on")
