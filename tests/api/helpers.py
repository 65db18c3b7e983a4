"""Clients of whole applications in this process, and what all their tests read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from starlette.types import ASGIApp

from service.api.backend import Backend, LocalBackend
from service.api.generator import Generator
from service.api.ingress import Ingress
from service.settings import Settings


def client(app: ASGIApp, **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)


def over(backend: Backend | Generator, **settings: Any) -> httpx.AsyncClient:
    """A client of a fresh ingress over a backend."""
    backend = LocalBackend(backend) if isinstance(backend, Generator) else backend
    return client(Ingress("i0", Settings(**settings), backend).app(answers_request_id=True))


async def page(http: httpx.AsyncClient) -> Callable[..., float]:
    """GET /metrics as page(name, **labels): the sum of a metric's samples that have these labels."""
    response = await http.get("/metrics")
    assert response.status_code == 200
    families = text_string_to_metric_families(response.text)
    samples = [sample for family in families for sample in family.samples]

    def read(name: str, **labels: str) -> float:
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    return read


def assert_shape(model: type[BaseModel], value: object) -> None:
    """The value is of the model, and has no field besides."""
    checked = model.model_validate(value).model_dump_json(exclude_unset=True)
    assert json.loads(checked) == value


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)
