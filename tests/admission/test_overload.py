"""Three times more work than the replicas can do, for a minute: answers, waits and retries.

The admission controllers are real, the replicas are simulated, the time is virtual.
"""

import asyncio
import random
from functools import cache
from typing import Any

import pytest

from service.admission.keys import ApiKey
from tests.admission.overload import Lengths, Log, Service
from tests.admission.virtual import now, run

pytestmark = pytest.mark.timeout(300)

SECONDS, MAX_QUEUE_S = 60.0, 30.0
EQUAL = Lengths()
MIXED = Lengths(lambda r: r.choice([2, 4, 8, 16, 32, 64, 128]), lambda r: r.random() ** 2, streams=0.5)
EARLY = Lengths(lambda _: 64, lambda r: min(1.0, r.expovariate(1 / 0.15)))
LENGTHS = {"equal": EQUAL, "mixed": MIXED, "early": EARLY}


def mean_blocks(lengths: Lengths) -> float:
    rng, count = random.Random(0), 4_000
    return sum(max(1, round(lengths.blocks(rng) * lengths.part(rng))) for _ in range(count)) / count


async def overload(
    lengths: Lengths, obeys: bool, times: float = 3.0, seconds: float = SECONDS, **settings: Any
) -> tuple[Service, Log]:
    """All clients of a minute, until the last of them has its answer or has left."""
    service = Service(16, 10.0, lengths, **{"max_waiting": 100_000} | settings)
    rate = times * service.capacity / mean_blocks(lengths)
    await asyncio.gather(*await service.poisson(rate, seconds, obeys=obeys))
    return service, service.log


@cache
def threefold(lengths: str, max_waiting: int = 100_000) -> tuple[Service, Log]:
    """An overload with clients that obey Retry-After. It runs once for all tests that use it."""
    return run(overload(LENGTHS[lengths], obeys=True, max_waiting=max_waiting))


limits = pytest.mark.parametrize(
    ("lengths", "max_waiting"),
    [
        pytest.param("equal", 100_000, id="by work-equal"),
        pytest.param("mixed", 50, id="by count-mixed"),
        pytest.param("early", 100_000, id="by work-early", marks=pytest.mark.slow),
    ],
)


@limits
def test_clients_that_obey_retry_after_are_all_served(lengths: str, max_waiting: int) -> None:
    """Most retries are admitted, and the retries keep the replicas busy to the end."""
    service, log = threefold(lengths, max_waiting)
    assert log.goodput(5, SECONDS) >= 0.95 * service.capacity
    assert log.retries > 500
    assert log.retries_admitted >= 0.6 * log.retries
    assert log.waits()[int(0.99 * len(log.waits()))] <= 1.5 * MAX_QUEUE_S
    assert all(client.ended is not None for client in log.clients)
    decoded = sum(client.decoded for client in log.clients)
    assert max(client.ended or 0.0 for client in log.clients) <= 1.15 * decoded / service.capacity


@limits
def test_clients_that_never_return_leave_no_replica_idle(lengths: str, max_waiting: int) -> None:
    service, log = run(overload(LENGTHS[lengths], obeys=False, max_waiting=max_waiting))
    assert log.goodput(5, SECONDS) >= 0.95 * service.capacity
    assert log.waits()[int(0.99 * len(log.waits()))] <= 1.5 * MAX_QUEUE_S
    refused = sum(client.waited_s is None for client in log.clients)
    assert 0.3 <= refused / len(log.clients) <= 0.75


def test_the_loss_of_half_the_replicas_loses_no_request() -> None:
    """Retry-After was computed for more capacity than there is."""

    async def main() -> tuple[Service, Log]:
        service = Service(16, 10.0, EQUAL, max_waiting=100_000)
        asyncio.get_running_loop().call_later(SECONDS / 2, service.shrink, 8)
        await asyncio.gather(*await service.poisson(2 * service.capacity / 16, SECONDS))
        return service, service.log

    service, log = run(main())
    assert log.goodput(SECONDS / 2 + 5, SECONDS) >= 0.95 * service.capacity == 76.0
    assert all(client.ended is not None for client in log.clients)


@pytest.mark.parametrize("ingresses", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_ingresses_fill_the_replicas(ingresses: int) -> None:
    """A retry may reach another ingress. No request is lost."""
    service, log = run(overload(EQUAL, obeys=True, api_server_count=ingresses))
    assert log.goodput(5, SECONDS) >= 0.95 * service.capacity
    assert all(client.ended is not None for client in log.clients)


def test_below_capacity_no_request_is_refused() -> None:
    _, log = run(overload(MIXED, obeys=True, times=0.8))
    assert log.retry_after == []
    assert log.waits()[-1] < MAX_QUEUE_S


@pytest.mark.parametrize("tenants", [1, 2])
def test_a_flood_leaves_others_their_share(tenants: int) -> None:
    """One key asks for five times the capacity, another one for a quarter of it. The other key is hardly affected.

    Of two tenants, none gets all slots, so that the other key hardly waits.
    """

    async def main() -> tuple[Log, list[Any]]:
        service = Service(16, 10.0, EQUAL, max_waiting=200, tenants=tenants)
        flood = asyncio.ensure_future(service.poisson(50.0, SECONDS, key=ApiKey("flood", b"f"), obeys=False))
        await asyncio.sleep(SECONDS / 4)
        other = await service.poisson(2.5, SECONDS / 2, key=ApiKey("other", b"o"))
        assert now() < SECONDS
        await asyncio.gather(*await flood)
        return service.log, await asyncio.gather(*other)

    log, other_clients = run(main())
    assert log.goodput(5, SECONDS) >= (0.95 if tenants == 1 else 0.65) * 160
    assert len(other_clients) > 50
    assert all(client.attempts == 1 for client in other_clients)
    assert max(client.waited_s for client in other_clients) < (5.0 if tenants == 1 else 2.5)


@pytest.mark.parametrize("tenants", [1, 2])
def test_shares_follow_the_weights(tenants: int) -> None:
    async def main() -> dict[str, int]:
        service = Service(16, 10.0, EQUAL, tenants=tenants)
        keys = (ApiKey("heavy", b"h", weight=3.0), ApiKey("light", b"l", weight=1.0))
        done = await asyncio.gather(*(service.poisson(20.0, SECONDS, key=key, obeys=False) for key in keys))
        return {
            key.name: sum(
                client.ended is not None and client.ended < SECONDS for client in await asyncio.gather(*tasks)
            )
            for key, tasks in zip(keys, done, strict=True)
        }

    served = run(main())
    assert served["heavy"] / served["light"] == pytest.approx(3.0, rel=0.15)
