"""Requests with a common prefix reach the same replica's prefix cache, by the real router of two replicas."""

import random
from functools import partial

import pytest

from tests.service.reading import eventually, sample

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
SESSIONS, TURNS, BLOCK = 4, 3, 4


def ask(client, prompt, **more):
    limits = {"max_new_tokens": 8, "mode": "static", "ignore_eos": True}
    response = client.post("/generate", json={"prompt_token_ids": prompt, **limits, **more})
    assert response.status_code == 200, response.text
    return response.json()


def routed(client):
    return {by: sample(client, "request_routed_total", by=by) for by in ("prefix", "load", "overloaded")}


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
