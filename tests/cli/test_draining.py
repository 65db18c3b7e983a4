"""The wait of a service that ends for its requests in progress, whatever its ingresses answer."""

import asyncio
from typing import Any

import pytest

from service.cli import draining


async def is_drained(timeout_s: float = 0.05) -> bool:
    """Whether all requests were answered in time. TimeoutError if the wait does not end."""
    return await asyncio.wait_for(draining._answered(timeout_s), 5)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_POLL_S", 0.001)


def ingresses(monkeypatch: pytest.MonkeyPatch, ask: Any) -> None:
    monkeypatch.setattr(draining, "_ask_ingresses", ask)


async def test_the_drain_ends_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([[2, 1], [0, 1], [0, 0]])

    async def ask(method: str) -> list[int]:
        assert method == "drain"
        return next(left)

    ingresses(monkeypatch, ask)
    assert await is_drained(60)
    assert next(left, None) is None


async def test_an_ingress_that_hangs_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(_: str) -> list[int]:
        raise TimeoutError

    ingresses(monkeypatch, ask)
    assert not await is_drained()


async def test_a_query_in_progress_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve's handle logs the traceback of a cancelled one, in the middle of an orderly end."""
    answered = []

    async def ask(_: str) -> list[int]:
        await asyncio.sleep(0.2)
        answered.append(1)
        return [1]

    ingresses(monkeypatch, ask)
    assert not await is_drained(0.05)
    assert answered == [1]
