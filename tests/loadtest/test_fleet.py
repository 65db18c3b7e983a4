"""The simulated engine in virtual time: it is as fast as its table, alone and together, streamed and whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from loadtest.fleet.__main__ import parse, speed_of
from loadtest.fleet.clock import ClockEngine, Job, Speed
from loadtest.fleet.replica import card, full_registry
from service.settings import Settings
from service.telemetry.metrics import METRICS
from tests.admission.virtual import now, run

SPEED = Speed([(1, 10.0, 1.0), (2, 20.0, 2.0), (4, 30.0, 2.0)], rows=1, mrp_steps=0, tokens_per_forward=2.0)


async def decode(engine: ClockEngine, tokens: int, every: int) -> list[tuple[int, float]]:
    """How many tokens there were when."""
    async with aclosing(engine.decode(tokens, every)) as events:
        return [(told, now()) async for _, told, _ in events]


def test_steps_take_what_was_measured() -> None:
    assert [SPEED.step_s(running) for running in (1, 2, 3, 4, 6)] == pytest.approx([0.010, 0.020, 0.025, 0.030, 0.040])
    drafting = Speed(SPEED.steps, rows=2, mrp_steps=3, tokens_per_forward=2.0, slowdown=10.0)
    assert drafting.step_s(2) == pytest.approx(10 * (0.030 + 3 * 0.002))
    assert SPEED.tokens_per_second(4) == pytest.approx(4 * 2 / 0.030)


def test_the_demos_own_times_are_there_without_options() -> None:
    """A replica of eight requests makes the 98 tokens a second that the log names."""
    assert speed_of(parse([])).tokens_per_second(8) == pytest.approx(98.0, rel=0.001)


def test_one_request_alone() -> None:
    async def main() -> list[tuple[int, float]]:
        return await decode(ClockEngine(SPEED, 8, now), 10, 4)

    told = run(main())
    assert [count for count, _ in told] == [4, 8, 10]
    assert [at for _, at in told] == pytest.approx([0.020, 0.040, 0.050])


@pytest.mark.parametrize("every", [4, 400])
def test_a_full_engine_decodes_at_the_tables_rate(every: int) -> None:
    async def main() -> tuple[float, float]:
        engine = ClockEngine(SPEED, 4, now)
        await asyncio.gather(*(decode(engine, 400, every) for _ in range(40)))
        return engine.tokens, now()

    tokens, seconds = run(main())
    assert tokens == pytest.approx(40 * 400)
    assert tokens / seconds == pytest.approx(SPEED.tokens_per_second(4), rel=0.01)


def test_who_comes_later_gets_in_between_two_steps_and_slows_the_others_down() -> None:
    async def main() -> tuple[float, float]:
        engine = ClockEngine(SPEED, 4, now)
        first = asyncio.create_task(decode(engine, 20, 20))
        await asyncio.sleep(0.015)
        [(_, second)] = await decode(engine, 4, 4)
        return (await first)[0][1], second

    first, second = run(main())
    assert second == pytest.approx(0.020 + 2 * 0.020)
    assert first == pytest.approx(2 * 0.010 + 2 * 0.020 + 6 * 0.010)


def test_more_than_fit_wait_for_their_turn() -> None:
    async def main() -> list[float]:
        engine = ClockEngine(SPEED, 1, now)
        answers = await asyncio.gather(*(decode(engine, 20, 20) for _ in range(3)))
        return [at for [(_, at)] in answers]

    assert run(main()) == pytest.approx([0.1, 0.2, 0.3])


def test_who_leaves_makes_room() -> None:
    async def main() -> float:
        engine = ClockEngine(SPEED, 1, now)
        leaving = asyncio.create_task(decode(engine, 2000, 4))
        waiting = asyncio.create_task(decode(engine, 20, 20))
        await asyncio.sleep(0.1)
        leaving.cancel()
        [(_, at)] = await waiting
        assert not engine.running
        return at

    assert run(main()) == pytest.approx(0.2)


@pytest.mark.parametrize("every", [4, 20])
def test_time_goes_on_while_nobody_looks(every: int) -> None:
    """A process that is busy during ten answers reports them late, completely, and with their simulated times."""

    async def main() -> list[tuple[int, float]]:
        time = 0.0
        engine = ClockEngine(SPEED, 1, lambda: time)

        async def all_of(job: AsyncGenerator[tuple[Job, int, float]]) -> list[tuple[int, float]]:
            return [(told, at) async for _, told, at in job]

        asked = [asyncio.ensure_future(all_of(engine.decode(20, every))) for _ in range(10)]
        await asyncio.sleep(0)
        time = 5.0
        engine.advance()
        return [one for answer in await asyncio.gather(*asked) for one in answer]

    told = run(main())
    assert [count for count, _ in told] == [*range(every, 21, every)] * 10
    assert max(at for _, at in told) == pytest.approx(1.0)


def test_a_stand_in_shows_all_metrics_and_the_places_of_a_replica() -> None:
    names = {f"mrp_{metric.name.removesuffix('_total')}" for metric in METRICS if metric.where == "replica"}
    families = full_registry().families("r0")
    assert {family.name for family in families} == names
    assert all(family.samples for family in families)
    assert card(Settings(max_running=8), 4).places == 10
