"""The search for capacity, at simulated servers of known capacity."""

import json

import pytest

from loadtest.capacity import Limits, Probe, conclude, confirmed, goal_of, highest, parse, row_of, table
from loadtest.generator.rows import Level
from loadtest.report.driver import Driver
from loadtest.report.scenario import Run, Slo
from loadtest.report.summary import points
from tests.loadtest.simulated import queue, request


def step(limit, tried):
    """Holds up to a limit."""

    async def holds(rate):
        tried.append(rate)
        return rate <= limit

    return holds


@pytest.mark.parametrize("first", [0.5, 9.0, 10.0, 200.0])
async def test_a_known_limit_is_reached_from_anywhere(first):
    tried = []
    assert 10 / 1.05 <= await highest(step(10.0, tried), first, 0.05) <= 10
    assert len(tried) <= 16


async def test_a_server_that_never_holds_has_no_capacity():
    assert await highest(step(0.0, []), 5.0, 0.05) == 0
    assert await confirmed(step(0.0, []), 0.0, 0.05) == 0


async def test_a_rate_that_a_longer_run_does_not_hold_is_lowered():
    tried = []
    assert 9 / 1.05 <= await confirmed(step(9.0, tried), 10.0, 0.05) <= 9
    assert tried[0] == 10.0


async def test_the_capacity_of_a_queue():
    """One server, fixed service time: p95 of the wait must be at most ten times that time."""
    service_s, limits = 0.2, Limits(2000.0, 100.0)

    async def holds(rate):
        run = Run("capacity", f"400:{rate:.4g}", loop="open", modes="static")
        [point] = points(run, queue(run, service_s), [], Slo(), 0.0)
        return not limits.broken(point)

    # M/D/1 waits ten service times at p95 when it is about 85 to 90 % busy
    assert 0.75 / service_s < await highest(holds, 0.3 / service_s, 0.03) < 1.0 / service_s


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
    run = Run("capacity", "10:1", loop="open", modes="static")
    rows = [Level(0.0, 0, 1), *(request(float(at), stage=0, **changes) for at in range(10))]
    [point] = points(run, rows, [], Slo(), 0.0)
    assert Limits(100.0, 50.0).broken(point) == why


@pytest.mark.parametrize(
    ("words", "goal"),
    [
        ([], Slo(500.0, 300.0)),
        (["--first-block-p95-ms", "200"], Slo(200.0, 300.0)),
        (["--first-block-p95-ms", "200", "--good-first-block-ms", "80", "--good-gap-ms", "40"], Slo(80.0, 40.0)),
    ],
)
def test_goodputs_goal_is_the_objectives_limits_unless_it_is_given(words, goal):
    assert goal_of(parse(words)) == goal


@pytest.mark.parametrize("word", ["--good-gap-ms=0", "--good-first-block-ms=-1", "--gap-p95-ms=nan"])
def test_a_goal_that_no_answer_can_meet_is_refused(word):
    with pytest.raises(ValueError, match="allowed: more than 0"):
        goal_of(parse([word]))


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


def test_the_table_is_by_rate_and_names_the_goal():
    goal = Slo(100.0, 50.0)
    high, low = probed(goal, [300.0] * 8, 4.0), probed(goal, [50.0] * 8, 2.0)
    lines = table([row_of(high, "too slow"), row_of(low, "")], goal).splitlines()
    assert lines[0] == "goodput: first block within 100 ms, each further one within 50 ms"
    assert lines[4].startswith("| 2 | 0.8 | 0.8 | 9.6 | 0.8 | 9.6 | 1 | 50 | 20 |")
    assert lines[4].endswith("| yes |")
    assert lines[5].endswith("| 300 | 20 | too slow |")
    assert {line.count("|") for line in lines[2:]} == {11}


def test_the_result_has_goal_and_goodput_of_every_probe(tmp_path, capsys):
    goal = Slo(100.0, 50.0)
    tried = [probed(goal, [50.0] * 8 + [150.0] * 2), probed(goal, [50.0] * 9)]
    probe = Probe(Driver("", tmp_path), Run("capacity", "1:1"), Limits(100.0, 50.0), goal, 1, tried)
    assert conclude(parse(["--out", str(tmp_path)]), probe, 0.9) == 0
    assert (tmp_path / "capacity.png").stat().st_size > 10_000
    written = json.loads((tmp_path / "capacity.json").read_text("utf-8"))
    assert written == json.loads(capsys.readouterr().out)
    assert written["goodput_goal"] == {"first_block_ms": 100.0, "gap_ms": 50.0}
    assert [row["goodput_per_s"] for row in written["probes"]] == [0.8, 0.9]
    assert (written["most_goodput_per_s"], written["at_capacity"]["good_tokens_per_s"]) == (0.9, 10.8)
    assert written["probes"][0]["broken"] == "first_block_p95_ms 150 > 100"
