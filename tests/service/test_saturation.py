"""Replicas with no free place still report their status."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.settings.settings import Settings
from tests.service.reading import by_holder, eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
#: Answers of one request. A few requests fill both ingresses, and so both replicas.
CHOICES, CLIENTS = 100, 4
REPLICAS = 2
#: seconds after which a client asks again
PATIENCE_S = 5
#: what a replica decodes at once on a CPU, if it has the memory
RUNNING = 64


def keep_asking(client, enough):
    """Sends requests repeatedly, also after refusals, until the test has enough; then abandons them.

    A request is abandoned after a while, too: all of them may have come to one ingress, which fills half of the places.
    """
    asked = {"prompt": [1, 2, 3], "max_tokens": 400, "mode": "static", "ignore_eos": True, "n": CHOICES, "stream": True}
    [model] = client.get("/v1/models").json()["data"]
    while not enough.is_set():
        until = time.monotonic() + PATIENCE_S
        with client.stream("POST", "/v1/completions", json={"model": model["id"], **asked}) as response:
            for _ in response.iter_lines():
                if enough.is_set() or time.monotonic() > until:
                    break
        enough.wait(0.05)


def test_full_replicas_answer_for_metrics(visitor, house):
    """If control calls needed a place, they would be answered only after a request has ended."""
    settings, enough = Settings(max_num_seqs=RUNNING), threading.Event()

    def full():
        running, waiting = (by_holder(visitor, f"num_requests_{state}") for state in ("running", "waiting"))
        waiting.pop("queue", None)
        most = max(running, key=running.get)
        assert len(running) == REPLICAS, "a full replica said nothing of it"
        all_places = sum(running.values()) + sum(waiting.values()) == REPLICAS * settings.slots
        return all_places and running[most] == RUNNING and waiting[most] > 0

    house.pace.slow(0.1)
    with ThreadPoolExecutor(CLIENTS) as pool, httpx.Client(base_url=house.url, timeout=60) as others:
        asking = [pool.submit(keep_asking, others, enough) for _ in range(CLIENTS)]
        try:
            eventually(full, "the replicas were never full")
        finally:
            enough.set()
            house.pace.full()
        for one in asking:
            one.result()
