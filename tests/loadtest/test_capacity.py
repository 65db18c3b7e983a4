"""The search for capacity, at simulated servers of known capacity."""

import pytest

from loadtest.capacity import Limits, goal_of, highest, parse, row_of
from loadtest.generator.rows import Level
from loadtest.report.scenario import Run, Slo
from loadtest.report.summary import points
from tests.loadtest.simulated import request


def step(limit, tried):
    async def holds(rate):
        tried.append(rate)
        return rate <= limit

    return holds


@pytest.mark.parametrize("first", [0.5, 200.0])
async def test_a_known_limit_is_reached_from_anywhere(first):
    tried = []
    assert 10 / 1.05 <= await highest(step(10.0, tried), first, 0.05) <= 10
    assert len(tried) <= 16


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"first": 101.0}, "first_block_p95_ms 101 > 100"),
        ({"status": 429, "error": "busy"}, "10 of 10 requests lost"),
    ],
)
def test_why_a_rate_does_not_hold(changes, why):
    run = Run("capacity", "10:1", loop="open", modes="static")
    rows = [Level(0.0, 0, 1), *(request(float(at), stage=0, **changes) for at in range(10))]
    [point] = points(run, rows, [], Slo(), 0.0)
    assert Limits(100.0, 50.0).broken(point) == why


def test_a_goal_that_no_answer_can_meet_is_refused():
    with pytest.raises(ValueError, match="allowed: more than 0"):
        goal_of(parse(["--good-gap-ms=0"]))


def probed(goal, firsts, rate=1.0):
    """The point of a probe of ten seconds, with answers of 12 tokens whose first blocks take `firsts` milliseconds."""
    run = Run("capacity", f"10:{rate:g}", loop="open", modes="static")
    rows = [Level(0.0, 0, rate), *(request(float(at), stage=0, first=first) for at, first in enumerate(firsts))]
    [point] = points(run, rows, [], goal, 0.0)
    return point


def test_goodput_counts_answers_within_the_goal_and_their_tokens():
    row = row_of(probed(Slo(100.0, 50.0), [50.0] * 6 + [150.0] * 2), "")
    assert (row["arrived_per_s"], row["goodput_per_s"], row["goodput_tokens_per_s"]) == (0.8, 0.6, 7.2)
    assert row["good_share"] == 0.75
    assert row_of(probed(Slo(100.0, 10.0), [50.0] * 8), "")["goodput_per_s"] == 0  # blocks come 20 ms apart
    assert row_of(probed(Slo(200.0, 50.0), [50.0] * 6 + [150.0] * 2), "")["goodput_per_s"] == 0.8
