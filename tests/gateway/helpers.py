"""Clients of whole applications in this process, and what all their tests read."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from pydantic import TypeAdapter
from starlette.types import ASGIApp

from service.api.generate import parse_generate_request
from service.api.parse import RequestContext
from service.gateway.backend import Backend
from service.gateway.ingress import Ingress
from service.messages.replica_status import Family, ModelCard
from service.messages.wire import ReplicaRequest
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.local import LocalBackend


def client(app: ASGIApp, **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)


def application(backend: Backend | Replica, *, listens: bool = False, **settings: Any) -> ASGIApp:
    """An ingress over a backend. `listens`: on the host of its settings."""
    backend = LocalBackend(backend) if isinstance(backend, Replica) else backend
    chosen = Settings(**settings)
    return Ingress("i0", chosen, backend).app(answers_request_id=True, host=chosen.host if listens else None)


def over(backend: Backend | Replica, *, listens: bool = False, **settings: Any) -> httpx.AsyncClient:
    """A client of a fresh ingress over a backend. Answers without a limit are short."""
    return client(application(backend, listens=listens, **{"default_max_tokens": 256, **settings}))


async def page(http: httpx.AsyncClient) -> Callable[..., float]:
    """GET /metrics as page(name, **labels): the sum of a metric's samples that have these labels."""
    response = await http.get("/metrics")
    assert response.status_code == 200
    samples = list(samples_of(response.text))

    def read(name: str, **labels: str) -> float:
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    return read


def samples_of(text: str) -> Iterator[Sample]:
    return (sample for family in text_string_to_metric_families(text) for sample in family.samples)


def read(families: Iterable[Family], name: str) -> float:
    """The sum of a metric's samples in one process."""
    text = "".join(family.head + family.samples for family in families)
    return sum(sample.value for sample in samples_of(text) if sample.name == name)


def gauge(generator: Replica, name: str) -> float:
    return read(generator.snapshot().families, name)


def idle(generator: Replica) -> bool:
    """Whether nothing is left of any request."""
    gauges = ("mrp_num_requests_running", "mrp_num_requests_waiting", "mrp_kv_cache_usage_perc")
    return not generator.snapshot().in_flight and not any(gauge(generator, name) for name in gauges)


def assert_shape(shape: type, value: object) -> None:
    """The value is of the shape, and has no field besides."""
    adapter = TypeAdapter(shape)
    assert json.loads(adapter.dump_json(adapter.validate_python(value), exclude_unset=True)) == value


def keys_file(folder: Path, **keys: dict[str, Any]) -> Path:
    """A file of API keys, each with its limits. The name of a key is the key itself."""
    path = folder / "keys.yaml"
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in keys}
    entries = [{"name": name, "sha256": digests[name], **limits} for name, limits in keys.items()]
    path.write_text(yaml.safe_dump(entries), "utf-8")
    return path


def replica_request_of(card: ModelCard, body: Mapping[str, Any], **context: Any) -> ReplicaRequest:
    """The request to a replica that the ingress makes of a body of /generate. `context`: of its `RequestContext`."""
    request_context = RequestContext(card, **{"timeout_limit_s": 60.0, **context})
    [request] = parse_generate_request({"mode": "static", **body, "stream": True}, request_context).requests
    return request


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.002)
