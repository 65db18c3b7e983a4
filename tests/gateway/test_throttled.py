"""What anybody may ask for is made at most so many times a second."""

from __future__ import annotations

import asyncio

import pytest

from service.gateway.metrics import Throttled
from tests.clock import Clock


class Counter:
    def __init__(self) -> None:
        self.made = 0

    async def __call__(self) -> int:
        self.made += 1
        await asyncio.sleep(0)
        return self.made


async def test_whoever_asks_seldom_gets_new_values(clock: Clock) -> None:
    throttled = Throttled(Counter(), clock)
    assert [await throttled() for _ in range(10)] == list(range(1, 11))


async def test_whoever_asks_often_gets_the_last_one(clock: Clock) -> None:
    made = Counter()
    throttled = Throttled(made, clock)
    for _ in range(1000):
        await throttled()
    before = made.made
    assert before <= 22
    clock.now += 1.0
    for _ in range(1000):
        await throttled()
    assert 9 <= made.made - before <= 11


async def test_all_at_once_get_one_value(clock: Clock) -> None:
    made = Counter()
    throttled = Throttled(made, clock)
    assert {await one for one in [asyncio.ensure_future(throttled()) for _ in range(50)]} == {1}


async def test_who_leaves_takes_nothing_from_others(clock: Clock) -> None:
    throttled = Throttled(Counter(), clock)
    first, second = asyncio.ensure_future(throttled()), asyncio.ensure_future(throttled())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1


async def test_errors_are_values_too(clock: Clock) -> None:
    async def fail() -> int:
        raise ValueError("no")

    throttled = Throttled(fail, clock)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            await throttled()
