"""A replica with every place taken still says how it is."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.service.conftest import GOLDEN, Service
from tests.service.test_serve import eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
LONG = {"prompt_token_ids": [1, 2, 3], "max_new_tokens": 2000, "mode": "static", "ignore_eos": True}
#: `--max-running 2` makes places for two that run and one that waits in the replica
RUNNING, WAITING = 2, 1


@pytest.fixture
def small():
    """A client of a service whose replica has few places."""
    running = Service("--model", GOLDEN, "--max-running", RUNNING)
    try:
        running.wait_until_ready()
        with httpx.Client(base_url=running.url, timeout=60) as client:
            yield client
    finally:
        status, said = running.stop()
    assert status == 0, said


def replica_gauges(client):
    """Requests that run and that wait in the replica, of one page of metrics; None for what it does not have."""
    families = {family.name: family.samples for family in text_string_to_metric_families(client.get("/metrics").text)}
    found = dict.fromkeys(("mrp_num_requests_running", "mrp_num_requests_waiting"))
    for name in found:
        for sample in families.get(name, ()):
            if sample.labels["replica"] != "queue":
                found[name] = sample.value
    return tuple(found.values())


def test_a_full_replica_answers_for_metrics(small):
    """Asked through a place like those of requests, it would answer only when one of them has ended."""
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(small.post, "/generate", json=LONG) for _ in range(RUNNING + WAITING)]
        eventually(lambda: replica_gauges(small) == (RUNNING, WAITING), "a full replica said nothing of it")
    assert [answer.result().status_code for answer in answers] == [200] * len(answers)
