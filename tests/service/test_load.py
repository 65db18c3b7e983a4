"""Two replicas under load: disconnects, and thousands of valid requests."""

import socket

import pytest

from tests.gateway.fuzz.sent import EXPECTED, send
from tests.service.processes import processes_of
from tests.service.reading import eventually, sample, until

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


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_thousands_of_valid_requests_stop_no_replica(pair_client, pair):
    before = processes_of(pair, "Generator")
    seen = await send(pair.url, 2000, seed=2000)
    assert set(seen) <= EXPECTED, "\n".join(seen)
    assert seen["answered"] > 1400  # on a slow machine more of the shortest time limits end
    assert until(pair_client, 200, replicas=2)
    assert processes_of(pair, "Generator") == before
