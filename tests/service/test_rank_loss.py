"""A process of a replica that two hold dies under load: answers are those of a quiet run, and none is left behind."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.service.processes import command, descendants, processes_of
from tests.service.reading import Streamed, eventually, sample, until, whole
from tests.service.running import Service, Services

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]
LONG = {"prompt_token_ids": [1, 2, 3], "max_new_tokens": 120, "temperature": 0.7, "ignore_eos": True}
REQUESTS = [{**LONG, "seed": seed, "mode": ("static", "speculative", "remask")[seed % 3]} for seed in range(6)]
SLOW = 0.1


@pytest.fixture
def pairs(services: Services) -> Iterator[Service]:
    running = services.of("tests.service.program", "--num-replicas", 2, "--tensor-parallel-size", 2)
    yield running
    running.pace.full()


def followers(of: int) -> list[int]:
    return [process for process in descendants(of) if "service.parallel.worker" in command(process)]


def test_a_rank_dies_and_no_request_notices(pairs: Service, services: Services) -> None:
    with httpx.Client(base_url=pairs.url, timeout=120, limits=httpx.Limits(max_connections=64)) as client:
        until(client, 200, replicas=2)
        answers = [whole(client, request) for request in REQUESTS]
        replicas = processes_of(pairs, "Generator")
        assert [len(followers(replica)) for replica in replicas] == [1, 1]
        pairs.pace.slow(SLOW)
        streams = [Streamed(client, request) for request in REQUESTS]
        with ThreadPoolExecutor(12) as pool, pairs.pace.released():
            streamed = [pool.submit(stream.read) for stream in streams]
            unary = [pool.submit(whole, client, request) for request in REQUESTS]
            assert all(stream.began.wait(60) for stream in streams)
            eventually(lambda: sample(client, "num_requests_running") == 12, "12 requests never ran at once")
            pairs.pace.hold()
            os.kill(followers(replicas[0])[0], signal.SIGKILL)
            pairs.pace.full()
            assert [future.result() for future in streamed] == answers
            assert [future.result() for future in unary] == answers
        assert sample(client, "request_failovers_total") > 0
        until(client, 200, replicas=2)
        eventually(lambda: len(followers(pairs.process.pid)) == 2, "the lost replica was not replaced by a whole one")
        now = processes_of(pairs, "Generator")
        assert replicas[0] not in now
        os.kill(now[0], signal.SIGKILL)  # rank 0 of a replica takes its own along
        eventually(lambda: now[0] not in processes_of(pairs, "Generator"), "it lives")
        until(client, 200, replicas=2)
        eventually(lambda: len(followers(pairs.process.pid)) == 2, "a rank outlives its replica")
        left = followers(pairs.process.pid)
    services.end()
    eventually(lambda: not any("service.parallel.worker" in command(process) for process in left), "ranks are left")
