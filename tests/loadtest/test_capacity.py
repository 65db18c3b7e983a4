"""The search for capacity, at simulated servers of known capacity."""

import pytest

from loadtest.capacity import Limits, confirmed, highest
from loadtest.report.figures import capacity as draw
from loadtest.report.scenario import Run, Slo
from loadtest.report.summary import points
from tests.loadtest.virtual import queue, request


def step(limit, tried):
    """Holds up to a limit."""

    async def holds(rate):
        tried.append(rate)
        return rate <= limit

    return holds


@pytest.mark.parametrize("first", [0.5, 9.0, 10.0, 200.0])
async def test_a_known_limit_is_found_from_anywhere(first):
    tried = []
    found = await highest(step(10.0, tried), first, 0.05)
    assert 10 / 1.05 <= found <= 10
    assert len(tried) <= 16


async def test_a_server_that_never_holds_has_no_capacity():
    assert await highest(step(0.0, []), 5.0, 0.05) == 0
    assert await confirmed(step(0.0, []), 0.0, 0.05) == 0


async def test_a_rate_that_a_longer_run_does_not_hold_is_lowered():
    tried = []
    assert 9 / 1.05 <= await confirmed(step(9.0, tried), 10.0, 0.05) <= 9
    assert tried[0] == 10.0


@pytest.mark.parametrize("service_s", [0.02, 0.2])
async def test_a_queues_capacity(service_s, tmp_path):
    """One server, fixed service time: p95 of the wait must be at most ten times that time."""
    limits, tried = Limits(10_000 * service_s, 100.0), []

    async def holds(rate):
        run = Run("capacity", f"{2000 * service_s:g}:{rate:.4g}", loop="open", modes="static")
        [point] = points(run, queue(run, service_s), [], Slo(), 0.0)
        tried.append(point)
        return not limits.broken(point)

    found = await highest(holds, 0.3 / service_s, 0.03)
    # M/D/1 waits ten service times at p95 when it is about 85 to 90 % busy
    assert 0.75 / service_s < found < 1.0 / service_s
    draw(tried, (limits.first_block_p95_ms, limits.gap_p95_ms), found, tmp_path / "capacity.png")
    assert (tmp_path / "capacity.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"first": 101.0}, "first_block_p95_ms 101 > 100"),
        ({"gap": 51.0}, "gap_p95_ms 51 > 50"),
        ({"status": 429, "error": "busy"}, "10 of 10 requests lost"),
    ],
)
def test_why_a_rate_does_not_hold(changes, why):
    from loadtest.generator.rows import Level

    run = Run("capacity", "10:1", loop="open", modes="static")
    rows = [Level(0.0, 0, 1), *(request(float(at), stage=0, **changes) for at in range(10))]
    [point] = points(run, rows, [], Slo(), 0.0)
    assert Limits(100.0, 50.0).broken(point) == why
