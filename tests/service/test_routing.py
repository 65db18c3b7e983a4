"""Requests that begin alike meet the same replica's prefix cache, through the real router of two replicas."""

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.service.test_replica_loss import until
from tests.service.test_serve import sample

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
SESSIONS, TURNS, BLOCK = 6, 4, 4
#: what an answer's end takes to be known to both ingresses, many times over
PAUSE_S = 0.2


def ask(client, prompt, **more):
    """The answer to a prompt of token ids."""
    limits = {"max_new_tokens": 8, "mode": "static", "ignore_eos": True}
    response = client.post("/generate", json={"prompt_token_ids": prompt, **limits, **more})
    assert response.status_code == 200, response.text
    return response.json()


def routed(client):
    return {by: sample(client, "request_routed_total", by=by) for by in ("prefix", "load", "overloaded")}


def ended(client):
    """Replica -> the requests it has ended, of whatever mode, for whatever reason."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    counts = Counter[str]()
    for one in (one for family in families for one in family.samples if one.name == "mrp_request_success_total"):
        counts[one.labels["replica"]] += one.value
    return counts


@pytest.fixture
def client(pair):
    _, opened = pair
    until(opened, 200, 2)
    return opened


def test_the_turns_of_a_session_find_the_last_ones_pages(client):
    """Through whichever of two ingresses. A new session that finds its home busy goes by load, and only one of them
    knows where: so there is a pause, in which the last answer's replica is seen to be free."""
    rng, before, hits = random.Random(5), routed(client), 0
    prompts = [rng.choices(range(500), k=80) for _ in range(SESSIONS)]
    for _ in range(TURNS):
        for prompt in prompts:
            answer = ask(client, prompt)
            hits += answer["stats"]["cached_tokens"] >= (len(prompt) - 32) // BLOCK * BLOCK
            prompt.extend(answer["token_ids"] + rng.choices(range(500), k=24))
            time.sleep(PAUSE_S)
    assert hits >= 0.8 * SESSIONS * (TURNS - 1), "half of them would be chance"
    now = routed(client)
    found = {by: now[by] - before[by] for by in now}
    assert found["prefix"] >= SESSIONS
    assert sum(found.values()) == SESSIONS * TURNS


def test_what_has_the_same_cache_key_goes_to_the_same_replica(client):
    rng, before = random.Random(6), ended(client)
    for _ in range(20):
        ask(client, rng.choices(range(500), k=24), prompt_cache_key="a session of mine")
    taken = counted(client, before, 20)
    assert max(taken) >= 17


def counted(client, before, requests):
    """Requests that each replica has ended since; /metrics may show what was so a moment ago."""
    for _ in range(100):
        taken = [count - before[name] for name, count in ended(client).items()]
        if sum(taken) == requests:
            return taken
        time.sleep(0.1)
    raise AssertionError(f"{sum(taken)} of {requests} requests are counted")


def test_choices_and_clients_at_the_same_time_are_all_answered(client):
    """Choices of one request share what Serve's unordered routers would tell them apart by."""
    rng = random.Random(7)
    [model] = client.get("/v1/models").json()["data"]
    request = {"model": model["id"], "max_tokens": 8, "n": 6, "ignore_eos": True}
    prompts = [rng.choices(range(500), k=24) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(
            pool.map(lambda prompt: client.post("/v1/completions", json={**request, "prompt": prompt}), prompts)
        )
    assert [len(answer.json()["choices"]) for answer in answers] == [6] * 6
