"""Rows become points with the right numbers, and points become files and pictures."""

import csv
import json

import pytest

from loadtest.generator.rows import UNFINISHED, Level
from loadtest.report.scenario import Run, Slo, parse
from loadtest.report.summary import Sample, is_good, points, saturation
from loadtest.run import draw, main
from tests.loadtest.fake import Fake, serve
from tests.loadtest.simulated import queue, request

SLO = Slo(first_block_ms=100, gap_ms=50)
CLOSED = Run("static", "10:1,10:4", modes="static")


def rows_of_a_closed_loop():
    """Level 1 from 0 s on, level 4 from 10 s on; every request streams 12 tokens."""
    warming = [request(at=0.5, first=5000.0)]
    first = [request(at=at) for at in (3.0, 5.0, 7.0, 9.0)]
    second = [request(at=13.0 + number / 2, first=80.0 if number % 2 else 300.0) for number in range(12)]
    failed = [request(at=14.0, status=429, error="busy", blocks=0, tokens=0)]
    cut = [request(at=19.0, status=0, error=UNFINISHED)]
    return [Level(0.0, 0, 1), *warming, *first, Level(10.0, 1, 4), *second, *failed, *cut]


def test_a_closed_loops_points():
    samples = [Sample(4.0, 1.0, 100, 150, 300), Sample(8.0, 1.8, 200, 350, 800)]
    single, four = points(CLOSED, rows_of_a_closed_loop(), samples, SLO, warm_s=2.0)
    assert (single.level, single.requests, single.failed, single.seconds) == (1, 4, 0, 8.0)
    assert single.requests_per_s == 5 / 8
    assert single.tokens_per_s == 5 * 12 / 8  # blocks of the window, a request of the warm-up included
    assert (single.first_block_p95_ms, single.gap_p95_ms, single.total_p50_ms) == (50, 20, 90)
    assert (single.good_share, single.good_per_s, single.good_tokens_per_s) == (1.0, 4 / 8, 4 * 12 / 8)
    assert single.client_cpu == pytest.approx(0.8 / 4)
    assert (single.rows_per_forward, single.tokens_per_engine_forward, single.engine_forward_ms) == (2.0, 5.0, 40.0)
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


def test_good_is_answered_and_every_block_in_time():
    assert is_good(request(), SLO)
    assert not is_good(request(first=101.0), SLO)
    assert not is_good(request(gap=51.0), SLO)
    assert not is_good(request(error="x"), SLO)
    assert not is_good(request(blocks=1, first_block_ms=None, total_ms=190.0), SLO)


def test_saturation_is_the_lowest_level_near_the_highest_throughput():
    run = Run("static", "10:1,10:2,10:4", modes="static")
    rows = []
    for stage, (level, count) in enumerate(((1, 5), (2, 10), (4, 10))):
        rows.append(Level(stage * 10.0, stage, level))
        rows += [request(stage * 10.0 + 3 + number / 10) for number in range(count)]
    assert saturation(points(run, rows, [], SLO, 2.0)).level == 2
    assert saturation([]) is None


# --- files and pictures ------------------------------------------------------------------------------

SCENARIO = parse(
    {
        "title": "A small report",
        "slo": {"first_block_ms": 100, "gap_ms": 50},
        "defaults": {"levels": "10:1,10:4"},
        "runs": [
            {"name": "static", "modes": "static"},
            {"name": "remask", "modes": "remask@threshold=0.5"},
            {"name": "mixed", "modes": "static,remask@threshold=0.5", "levels": "10:4"},
            {"name": "arrivals", "modes": "static", "loop": "open", "of": "static", "levels": "20:5,20:20"},
        ],
    },
    "test",
)


def rows_of(run):
    """Rows of a loop that answers 20 requests of each mode at each level."""
    if run.loop == "open":
        return queue(run, service_s=0.1)
    rows = []
    for stage, level in enumerate(run.profile.stages):
        rows.append(Level(stage * 10.0, stage, level.first))
        for mode in run.modes.split(","):
            rows += [request(stage * 10.0 + 3 + n / 20, first=30 * level.first, mode=mode) for n in range(20)]
    return rows


def test_pictures_of_modes_mix_and_arrivals(tmp_path):
    samples = [Sample(float(at), 0.1 * at, 10.0 * at, 20.0 * at, 30.0 * at) for at in range(20)]
    measured = [
        point for run in SCENARIO.runs for point in points(run, rows_of(run), samples, SCENARIO.slo, SCENARIO.warm_s)
    ]
    draw(SCENARIO, measured, tmp_path)
    pictures = {path.name: path.stat().st_size for path in tmp_path.glob("*.png")}
    assert set(pictures) == {"arrivals.png", "forwards.png", "latency.png", "throughput.png", "together.png"}
    assert min(pictures.values()) > 10_000


def test_a_scenario_at_a_service_writes_points_and_pictures(tmp_path, monkeypatch, capsys):
    scenario, out = tmp_path / "small.yaml", tmp_path / "out"
    scenario.write_text(json.dumps({"title": "t", "warm_s": 0.1, "runs": [{"name": "static", "levels": "1:1,1:2"}]}))
    with serve(Fake()) as url:
        monkeypatch.setattr("sys.argv", ["run", "--url", url, "--scenario", str(scenario), "--out", str(out)])
        main()
    table = list(csv.DictReader((out / "points.csv").read_text().splitlines()))
    assert [(row["run"], float(row["level"]), row["failed"]) for row in table] == [
        ("static", 1, "0"),
        ("static", 2, "0"),
    ]
    assert all(float(row["tokens_per_s"]) > 0 and float(row["first_block_p95_ms"]) > 0 for row in table)
    assert {path.name for path in out.iterdir()} >= {"points.json", "throughput.png", "raw"}
    assert "goodput" in capsys.readouterr().err
