"""Requests with a common prefix reach the same replica's prefix cache, by the real router of two replicas."""

import random
from collections import Counter
from functools import partial

import pytest

from tests.service.reading import by_holder, eventually, sample

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
SESSIONS, TURNS, BLOCK = 4, 3, 4


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
    return Counter(by_holder(client, "request_success_total"))


def all_linked(pair_client):
    pair_client.get("/health").raise_for_status()  # makes one of the ingresses ask for the replicas
    return sample(pair_client, "replicas_linked") == 4


def test_the_turns_of_a_session_find_the_last_ones_pages(pair_client, idle_pair):
    """Through whichever of two ingresses. A new session that finds its home busy goes by load, and only one of them
    knows where: so every process has answered a question before the next turn, and knows that the last one is over."""
    eventually(partial(all_linked, pair_client), "an ingress has no links")
    rng, before, hits = random.Random(5), routed(pair_client), 0
    prompts = [rng.choices(range(500), k=80) for _ in range(SESSIONS)]
    for _ in range(TURNS):
        for prompt in prompts:
            answer = ask(pair_client, prompt)
            hits += answer["stats"]["cached_tokens"] >= (len(prompt) - 32) // BLOCK * BLOCK
            prompt.extend(answer["token_ids"] + rng.choices(range(500), k=24))
            eventually(lambda: sample(pair_client, "num_requests_running") == 0, "a request never ended")
    assert hits == SESSIONS * (TURNS - 1), "half of them would be chance"
    now = routed(pair_client)
    counts = {by: now[by] - before[by] for by in now}
    assert counts["prefix"] >= SESSIONS
    assert sum(counts.values()) == SESSIONS * TURNS


def test_requests_with_one_cache_key_go_to_one_replica(pair_client, idle_pair):
    rng, before = random.Random(6), ended(pair_client)
    for _ in range(20):
        ask(pair_client, rng.choices(range(500), k=24), prompt_cache_key="a session of mine")
    counts = counted(pair_client, before, 20)
    assert max(counts) >= 17


def counted(client, before, requests):
    """Requests that each replica has ended since; /metrics may show what was so a moment ago."""
    counts = []

    def all_of_them():
        counts[:] = [count - before[name] for name, count in ended(client).items()]
        return sum(counts) == requests

    eventually(all_of_them, f"not all of {requests} requests are counted")
    return counts
