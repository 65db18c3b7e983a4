"""A service that scales by our policy, which `service.app` gives Serve by itself: to zero, and up from it."""

import httpx
import pytest

from tests.service.reading import eventually
from tests.service.running import Services

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]
SCALING = ("--num-replicas", 0, "--max-replicas", 1)
REQUEST = {"prompt_token_ids": [1, 2, 3], "max_new_tokens": 8, "mode": "static", "ignore_eos": True}


def test_a_request_starts_a_replica_and_none_runs_without_requests(services: Services) -> None:
    """Serve sees no request: the ingress tells its policy how many replicas the requests need."""
    service = services.of("tests.service.scaled", *SCALING)
    with httpx.Client(base_url=service.url, timeout=180) as client:

        def replicas() -> int:
            health = client.get("/health")
            assert health.status_code in {200, 503}, health.text
            return int(health.json().get("replicas_ready", -1))

        eventually(lambda: replicas() == 0, "the first replica was never stopped", 120)
        answer = client.post("/generate", json=REQUEST)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["token_ids"]) == 8
        assert replicas() == 1
