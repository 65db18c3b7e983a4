"""Two replicas under load: disconnects, no free slot, thousands of valid requests."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.settings.settings import Settings
from tests.gateway.fuzz.sent import EXPECTED, send
from tests.service.processes import processes_of
from tests.service.reading import by_holder, eventually, sample, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
LONG = {"prompt_token_ids": [1, 2, 3], "max_new_tokens": 2000, "mode": "static", "ignore_eos": True}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_pages(pair_client, pair, stream):
    pair.pace.slow(0.1)
    aborted = sample(pair_client, "request_success_total", finished_reason="abort")
    request = pair_client.build_request("POST", "/generate", json={**LONG, "stream": stream})
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection(("127.0.0.1", pair.port)) as connection:
        connection.sendall(f"POST /generate HTTP/1.1\r\n{head}\r\n".encode() + request.content)
        if stream:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        eventually(lambda: sample(pair_client, "num_requests_running") == 1, "the request never ran")
        assert sample(pair_client, "kv_cache_usage_perc") > 0
    eventually(lambda: sample(pair_client, "num_requests_running") == 0, "the request was not aborted")
    assert sample(pair_client, "kv_cache_usage_perc") == 0
    assert sample(pair_client, "request_success_total", finished_reason="abort") == aborted + 1


#: Answers of one request. A few requests fill both ingresses, and so both replicas.
CHOICES, CLIENTS = 100, 4
REPLICAS = 2
#: seconds after which a client asks again
PATIENCE_S = 5
#: what a replica decodes at once on a CPU, if it has the memory
RUNNING = 64


def keep_sending(client, enough):
    """Sends requests repeatedly, also after refusals, until the test has enough; then abandons them.

    A request is abandoned after a while, too: all of them may have come to one ingress, which fills half of the slots.
    """
    body = {"prompt": [1, 2, 3], "max_tokens": 400, "mode": "static", "ignore_eos": True, "n": CHOICES, "stream": True}
    [model] = client.get("/v1/models").json()["data"]
    while not enough.is_set():
        until = time.monotonic() + PATIENCE_S
        with client.stream("POST", "/v1/completions", json={"model": model["id"], **body}) as response:
            for _ in response.iter_lines():
                if enough.is_set() or time.monotonic() > until:
                    break
        enough.wait(0.05)


def test_full_replicas_answer_for_metrics(pair_client, pair):
    """If control calls needed a slot, they would be answered only after a request has ended."""
    settings, enough = Settings(max_num_seqs=RUNNING), threading.Event()

    def full():
        running, waiting = (by_holder(pair_client, f"num_requests_{state}") for state in ("running", "waiting"))
        waiting.pop("queue", None)
        busiest = max(running, key=running.get)
        assert len(running) == REPLICAS, "a full replica reports nothing"
        all_slots = sum(running.values()) + sum(waiting.values()) == REPLICAS * settings.slots
        return all_slots and running[busiest] == RUNNING and waiting[busiest] > 0

    pair.pace.slow(0.1)
    with ThreadPoolExecutor(CLIENTS) as pool, httpx.Client(base_url=pair.url, timeout=60) as client:
        sending = [pool.submit(keep_sending, client, enough) for _ in range(CLIENTS)]
        try:
            eventually(full, "the replicas were never full")
        finally:
            enough.set()
            pair.pace.full()
        for future in sending:
            future.result()


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_thousands_of_valid_requests_stop_no_replica(pair_client, pair):
    before = processes_of(pair, "Generator")
    seen = await send(pair.url, 2000, seed=2000)
    print(f"\n{dict(seen)}")  # noqa: T201 - shown by -s
    assert set(seen) <= EXPECTED, "\n".join(seen)
    assert seen["answered"] > 1400  # on a slow machine more of the shortest time limits end
    assert until(pair_client, 200, replicas=2)
    assert processes_of(pair, "Generator") == before
