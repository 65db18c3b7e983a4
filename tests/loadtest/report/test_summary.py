"""Rows become points with the right numbers; thresholds judge them."""

from dataclasses import replace

import pytest

from loadtest.generator.rows import UNFINISHED, Client, Level
from loadtest.report.scenario import Run, Slo
from loadtest.report.summary import Sample, fair_slowdowns, is_good, percentile, points, saturation, windows
from loadtest.report.thresholds import Threshold
from tests.loadtest.virtual import queue, request

SLO = Slo(first_block_ms=100, gap_ms=50)
CLOSED = Run("static", "10:1,10:4", modes="static")


def rows_of_a_closed_loop():
    """Level 1 from 0 s on, level 4 from 10 s on; every request streams 12 tokens."""
    warming = [request(at=0.5, first=5000.0)]
    first = [request(at=at) for at in (3.0, 5.0, 7.0, 9.0)]
    second = [request(at=13.0 + number / 2, first=80.0 if number % 2 else 300.0) for number in range(12)]
    failed = [request(at=14.0, status=429, error="busy", blocks=0, tokens=0)]
    cut = [request(at=19.0, status=0, error=UNFINISHED)]
    looks = [Client(at, process, cpu) for process in (1, 2) for at, cpu in ((4.0, 1.0), (8.0, 1.4))]
    return [Level(0.0, 0, 1), *warming, *first, *looks, Level(10.0, 1, 4), *second, *failed, *cut]


def test_percentiles_are_nearest_ranks():
    values = list(range(1, 101))
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([7.0], 0.5) == 7.0
    assert percentile([], 0.5) is None


def test_a_closed_loops_points():
    samples = [Sample(4.0, 100, 150, 300), Sample(8.0, 200, 350, 800)]
    one, four = points(CLOSED, rows_of_a_closed_loop(), samples, SLO, warm_s=2.0)
    assert (one.level, one.requests, one.failed, one.seconds) == (1, 4, 0, 8.0)
    assert one.requests_per_s == 5 / 8
    assert one.tokens_per_s == 5 * 12 / 8  # what came in the window, though one was asked for before it
    assert (one.first_block_p95_ms, one.gap_p95_ms, one.total_p50_ms) == (50, 20, 90)
    assert (one.good_share, one.good_per_s, one.good_tokens_per_s) == (1.0, 4 / 8, 4 * 12 / 8)
    assert one.client_cpu == pytest.approx(2 * 0.4 / 4)
    assert (one.rows_per_forward, one.tokens_per_engine_forward, one.engine_forward_ms) == (2.0, 5.0, 40.0)
    assert (four.level, four.requests, four.failed, four.unfinished) == (4, 14, 1, 1)
    assert (four.first_block_p50_ms, four.first_block_p95_ms) == (80, 300)
    assert (four.good_share, four.good_tokens_per_s) == (6 / 14, 6 * 12 / 8)  # late, refused and cut ones do not count
    assert (four.tokens_per_forward, four.rows_per_forward) == (2.0, None)


def test_tokens_per_forward_weighs_by_forwards():
    rows = [
        Level(0.0, 0, 1),
        request(3.0, tokens=12, tokens_per_forward=3.0),
        request(4.0, tokens=4, tokens_per_forward=1.0),
    ]
    assert points(CLOSED, rows, [], SLO, 2.0)[0].tokens_per_forward == 16 / 8


def test_a_mixed_run_has_a_point_for_every_mode():
    run = Run("mixed", "10:2", modes="static,remask@threshold=0.5")
    rows = [Level(0.0, 0, 2), request(3.0), request(4.0, mode="remask@threshold=0.5", first=70.0)]
    every, remask, static = points(run, rows, [], SLO, 1.0)
    assert (every.mode, every.requests) == (run.modes, 2)
    assert (remask.mode, remask.first_block_p50_ms) == ("remask@threshold=0.5", 70.0)
    assert (static.mode, static.first_block_p50_ms) == ("static", 50.0)


def test_an_open_loop_counts_all_that_were_due_in_a_stage():
    run = Run("arrivals", "100:5,100:20", loop="open", modes="static")
    rows = queue(run, service_s=0.1)  # 10 a second
    calm, flooded = points(run, rows, [], Slo(150, 50), warm_s=5.0)
    assert calm.requests == pytest.approx(500, rel=0.15)
    assert calm.good_share > 0.3
    assert flooded.requests == pytest.approx(2000, rel=0.1)
    assert flooded.requests_per_s == pytest.approx(10, rel=0.02)
    assert flooded.first_block_p50_ms > 20_000
    assert flooded.good_share < 0.02


def test_windows_leave_out_a_warm_up_but_never_more_than_half():
    assert [(w.since, w.until) for w in windows(CLOSED, [Level(5.0, 0, 1)], 2.0)] == [(7.0, 15.0)]
    assert [(w.since, w.until) for w in windows(CLOSED, [Level(5.0, 0, 1)], 99.0)] == [(10.0, 15.0)]


def test_good_is_answered_and_every_block_in_time():
    assert is_good(request(), SLO)
    assert not is_good(request(first=101.0), SLO)
    assert not is_good(request(gap=51.0), SLO)
    assert not is_good(request(error="x"), SLO)
    assert is_good(request(blocks=1, first_block_ms=None, total_ms=90.0), SLO)
    assert not is_good(request(blocks=1, first_block_ms=None, total_ms=190.0), SLO)


def test_saturation_is_the_lowest_level_near_the_highest_throughput():
    run = Run("static", "10:1,10:2,10:4", modes="static")
    rows = []
    for stage, (level, count) in enumerate(((1, 5), (2, 10), (4, 10))):
        rows.append(Level(stage * 10.0, stage, level))
        rows += [request(stage * 10.0 + 3 + number / 10) for number in range(count)]
    assert saturation(points(run, rows, [], SLO, 2.0)).level == 2
    assert saturation([]) is None


def test_a_fair_slowdown_is_the_mixes_forward_by_the_modes_own():
    samples = {"quick": 200, "slow": 50}  # forwards in 4 s: 20 ms and 80 ms each
    pairs = []
    for mode, forwards in samples.items():
        seen = [Sample(4.0, 0, 0, 0), Sample(8.0, forwards, 0, 0)]
        rows = [Level(0.0, 0, 1), *(request(3.0 + n / 4, mode=mode) for n in range(10))]
        [alone] = points(Run(mode, "10:1", modes=mode), rows, seen, SLO, 2.0)
        pairs.append((alone, alone))
    assert fair_slowdowns(pairs) == [2.5, 0.625]  # half of the live requests are of each: 50 ms
    unknown = [(replace(alone, engine_forward_ms=None), mixed) for alone, mixed in pairs]
    assert fair_slowdowns(unknown) == [None, None]


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("failed>0", ["static at 4 has failed 1"]),
        ("failed>1", []),
        ("static@1:first_block_p95_ms>49", ["static at 1 has first_block_p95_ms 50"]),
        ("static@4:good_share<0.5", ["static at 4 has good_share 0.4286"]),
        ("static@1:good_share < 0.5", []),
        ("other:failed>9", ["nothing was measured"]),
    ],
)
def test_thresholds(text, broken):
    found = Threshold.parse(text).broken(points(CLOSED, rows_of_a_closed_loop(), [], SLO, 2.0))
    assert [what.partition(": ")[2] if "nothing" in what else what.split(": ", 1)[1] for what in found] == broken


@pytest.mark.parametrize("text", ["", "failed", "speed>1", "failed=1", "failed>x", "static@:failed>1"])
def test_wrong_thresholds_say_what_is_allowed(text):
    with pytest.raises(ValueError, match="allowed:"):
        Threshold.parse(text)
