"""A value that any client may request is computed at most so many times a second."""

import asyncio

from service.gateway.metrics import Throttled


class Counter:
    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> int:
        self.count += 1
        await asyncio.sleep(0)
        return self.count


async def test_a_frequent_caller_gets_the_last_value(clock):
    counter = Counter()
    throttled = Throttled(counter, clock)
    for _ in range(1000):
        await throttled()
    before = counter.count
    assert before <= 22
    clock.now += 1.0
    for _ in range(1000):
        await throttled()
    assert 9 <= counter.count - before <= 11


async def test_concurrent_callers_get_one_value(clock):
    counter = Counter()
    throttled = Throttled(counter, clock)
    assert set(await asyncio.gather(*(throttled() for _ in range(50)))) == {1}


async def test_a_cancelled_caller_leaves_the_value_to_others(clock):
    throttled = Throttled(Counter(), clock)
    first, second = asyncio.ensure_future(throttled()), asyncio.ensure_future(throttled())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1
