"""Two replicas behind an ingress, and checkpoints with other numbers."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.weights.replicas import Replicas, fresh_answer
from tests.other_weights import FIRST, other_weights

MakeReplicas = Callable[..., Replicas]


@pytest.fixture(scope="package")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_weights(tmp_path_factory.mktemp("weights") / "step-7")


@pytest.fixture(scope="package")
def third(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_weights(tmp_path_factory.mktemp("weights") / "step-8", seed=8)


@pytest.fixture(scope="package")
def answers(other: Path, third: Path) -> dict[Path, list[int]]:
    return {path: fresh_answer(path) for path in (FIRST, other, third)}


@pytest.fixture
def make() -> Iterator[MakeReplicas]:
    """make(count, **settings) -> replicas, closed after the test."""
    services: list[Replicas] = []

    def make(*count: int, **settings: Any) -> Replicas:
        services.append(Replicas(*count, **settings))
        return services[-1]

    yield make
    for service in services:
        service.close()


@pytest.fixture
def service(make: MakeReplicas) -> Replicas:
    return make()


@pytest.fixture(scope="package")
def steady() -> Iterator[Replicas]:
    """Two replicas for tests that leave them as they were."""
    service = Replicas()
    yield service
    service.close()


@pytest.fixture
async def http(service: Replicas) -> AsyncIterator[httpx.AsyncClient]:
    async with service.ingress() as http:
        yield http


@pytest.fixture
async def steady_http(steady: Replicas) -> AsyncIterator[httpx.AsyncClient]:
    async with steady.ingress() as http:
        yield http
