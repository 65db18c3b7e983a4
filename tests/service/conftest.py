"""Two services, one after the other, each for all tests that use it, and the order of those tests."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.routing.router import _REPORT_S
from tests.service.reading import eventually, sample, until
from tests.service.running import Service, Services

_HERE = Path(__file__).parent
#: The tests of one service run one after the other, in any order of collection. Tests that earlier load would disturb
#: come first, the test that ends the service comes last.
_ORDER = {"idle_pair": 1, "ending_pair": 3, "pair": 2, "service": 4}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    indices = [index for index, item in enumerate(items) if _HERE in item.path.parents]
    ordered = sorted((items[index] for index in indices), key=_position)
    for index, item in zip(indices, ordered, strict=True):
        items[index] = item


def _position(item: pytest.Item) -> int:
    fixtures = getattr(item, "fixturenames", ())
    return next((position for name, position in _ORDER.items() if name in fixtures), 0)


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    running = Services(lambda: tmp_path_factory.mktemp("service"))
    yield running
    running.end()


@pytest.fixture
def pair(services: Services, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Two replicas, whose pace the test sets, behind two ingresses that listen on all addresses."""
    pair = ("--num-replicas", 2, "--api-server-count", 2)
    running = services.of(
        "tests.service.program", *pair, "--host", "0.0.0.0", "--drain-timeout-s", 2, "--admin-keys", "boss"
    )
    yield running
    running.pace.full()
    if "idle_pair" not in request.fixturenames:
        running.loaded_at = time.monotonic()


@pytest.fixture
def idle_pair(pair: Service) -> None:
    """Waits until the load of the last test is forgotten: a replica's report of its requests is used for a while.

    Tests that use this make no such load.
    """
    time.sleep(max(0.0, pair.loaded_at + _REPORT_S - time.monotonic()))


@pytest.fixture
def pair_client(pair: Service) -> Iterator[httpx.Client]:
    """A client of that service, when both replicas are healthy and idle."""
    limits = httpx.Limits(max_connections=64)
    with httpx.Client(base_url=pair.url, timeout=120, limits=limits) as opened:
        until(opened, 200, replicas=2)
        eventually(lambda: sample(opened, "num_requests_running") == 0, "requests of the last test go on")
        yield opened


@pytest.fixture
def ending_pair(pair: Service) -> Service:
    return pair


@pytest.fixture
def service(services: Services) -> Service:
    """The program as a user starts it, with API keys and a log."""
    logs = ("--log-level", "debug", "--log-format", "json")
    return services.of("service.cli", "--api-keys", "first,second", *logs)


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=60, headers={"authorization": "Bearer second"}) as opened:
        yield opened
