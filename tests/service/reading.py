"""Reads health, metrics, streams and whole answers of a running service."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

#: tokens, finish reason, usage
Outcome = tuple[list[int], str, dict[str, Any]]


def eventually(condition: Callable[[], Any], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def until(client: httpx.Client, status: int, replicas: int = 1) -> httpx.Response:
    """Polls /health until it has that status, and as many replicas if it is 200."""
    seen: list[httpx.Response] = []

    def there() -> bool:
        seen.append(client.get("/health"))
        return seen[-1].status_code == status and seen[-1].json().get("replicas_ready", replicas) == replicas

    eventually(there, f"/health never said {status}", 90)
    return seen[-1]


def samples(client: httpx.Client, name: str) -> list[Sample]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return [sample for family in families for sample in family.samples if sample.name == f"mrp_{name}"]


def sample(client: httpx.Client, name: str, **labels: str) -> float:
    """The sum of those that have the labels."""
    return sum(sample.value for sample in samples(client, name) if labels.items() <= sample.labels.items())


def by_holder(client: httpx.Client, name: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for sample in samples(client, name):
        sums[sample.labels["replica"]] = sums.get(sample.labels["replica"], 0.0) + sample.value
    return sums


def events(response: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


class Streamed:
    """A stream being read: whether a block has come, the last event, the longest time between two events."""

    def __init__(self, client: httpx.Client, request: dict[str, Any]) -> None:
        self.began, self.pause, self.last = threading.Event(), 0.0, ("", {"nothing": "came"})
        self._client, self._request = client, request

    def read(self) -> Outcome:
        tokens, since = [], time.monotonic()
        with self._client.stream("POST", "/generate", json={**self._request, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            for self.last in events(response):
                now = time.monotonic()
                self.pause, since = max(self.pause, now - since), now
                tokens += self.last[1].get("token_ids", ())
                self.began.set()
        name, data = self.last
        assert name == "done", data
        return tokens, data["finish_reason"], data["usage"]


def whole(client: httpx.Client, request: dict[str, Any]) -> Outcome:
    """The same of a whole answer."""
    response = client.post("/generate", json=request)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["token_ids"], answer["finish_reason"], answer["usage"]
