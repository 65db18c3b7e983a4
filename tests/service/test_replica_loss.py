"""A replica that dies: health says so with the reason, requests are refused, and Serve puts another in its place."""

import os
import signal
import time

import pytest

from tests.service.processes import command, descendants

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]
WANTED = {"prompt_token_ids": [1, 2, 3], "max_new_tokens": 8, "mode": "static"}


def replica_of(service):
    """The one process of the model among those the service started."""
    started = descendants(service.process.pid)
    [replica] = [process for process in started if command(process).startswith("ray::ServeReplica:mrp:Generator")]
    return replica


def until(client, status):
    """Polls /health until it has that status."""
    deadline = time.monotonic() + 90
    while (health := client.get("/health")).status_code != status:
        assert time.monotonic() < deadline, health.text
        time.sleep(0.1)
    return health


def test_a_replica_that_dies_is_replaced(client, service):
    before = client.post("/generate", json=WANTED).json()
    with client.stream("POST", "/generate", json={**WANTED, "max_new_tokens": 2000, "stream": True}) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: block"
        os.kill(replica_of(service), signal.SIGKILL)
        assert "event: error" in list(lines)
    health = until(client, 503)
    assert health.json()["error"]["code"] == "not_ready"
    assert "no replica can generate" in health.json()["error"]["message"]
    refused = client.post("/generate", json=WANTED)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
    assert int(refused.headers["retry-after"]) >= 1
    assert until(client, 200).json()["replicas_ready"] == 1
    assert client.post("/generate", json=WANTED).json()["token_ids"] == before["token_ids"]
