"""The report: from recorded rows to pictures and one page that needs nothing else."""

import re

import pytest
from PIL import Image

from loadtest.generator.rows import Client, Level
from loadtest.report.page import write
from loadtest.report.result import Result
from loadtest.report.scenario import parse
from loadtest.report.summary import Sample, points
from loadtest.report.words import answers, number
from tests.loadtest.virtual import queue, request

SCENARIO = parse(
    {
        "title": "A <small> report",
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


def closed(run, count, first):
    """Rows of a closed loop that answers `count` requests at each level."""
    rows = []
    for stage, level in enumerate(run.profile.stages):
        began = stage * 10.0
        rows += [Level(began, stage, level.first), Client(began + 3, 1, 0.0), Client(began + 9, 1, 0.3)]
        for mode in run.modes.split(","):
            rows += [request(began + 3 + n / 20, first=first * level.first, mode=mode) for n in range(count)]
    return rows


@pytest.fixture(scope="module")
def result():
    static, remask, mixed, arrivals = SCENARIO.runs
    samples = [Sample(float(at), 10.0 * at, 20.0 * at, 30.0 * at) for at in range(20)]
    found = []
    for run, rows in (
        (static, closed(static, 20, 30.0)),
        (remask, closed(remask, 40, 20.0)),
        (mixed, closed(mixed, 10, 40.0)),
        (arrivals, queue(arrivals, service_s=0.1)),
    ):
        found += points(run, rows, samples, SCENARIO.slo, 2.0)
    return Result(SCENARIO, found, {"id": "demo", "block_size": 16})


def test_the_page_holds_everything_and_asks_nobody(result, tmp_path):
    page = write(result, tmp_path).read_text("utf-8")
    drawn = sorted(path.name for path in tmp_path.glob("*.png"))
    assert drawn == ["arrivals.png", "forwards.png", "latency.png", "throughput.png", "together.png"]
    assert page.count("data:image/png;base64,") == len(drawn)
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
    assert "http" not in page
    assert "A &lt;small&gt; report" in page
    for point in result.points:
        assert f"<td>{number(point.tokens_per_s)}</td>" in page


def test_the_pictures_are_pictures(result, tmp_path):
    write(result, tmp_path)
    for path in tmp_path.glob("*.png"):
        with Image.open(path) as picture:
            assert picture.width >= 600
            assert picture.height >= 400
            assert len(picture.convert("RGB").getcolors(1 << 20)) > 10  # not an empty canvas


def test_the_answers_have_the_right_numbers(result):
    said = dict(answers(result))
    # static: 4 users wait 120 ms, which is over the objective; remask: 80 ms
    assert "static: 1 (" in said["How many users at once?"]
    assert "remask: 4 or more (" in said["How many users at once?"]
    assert said["Which mode?"].startswith("Most throughput: remask. Quickest whole answer at the lowest level: remask")
    assert "of 19.4 requests a second 9.9 are answered, 0% in time; 0 of 389" in said["What happens under overload?"]
    assert said["What did the load generator itself cost?"].startswith("Up to 5 % of one core")


def test_modes_alone_are_paired_with_the_mix_at_the_same_level(result):
    pairs = [(alone.run, alone.level, mixed.run, mixed.mode) for alone, mixed in result.pairs]
    assert pairs == [("static", 4, "mixed", "static"), ("remask", 4, "mixed", "remask@threshold=0.5")]


def test_a_report_of_little_shows_what_there_is(tmp_path):
    run = parse({"title": "t", "runs": [{"name": "one", "levels": "10:1"}]}, "test")
    few = points(run.runs[0], [Level(0.0, 0, 1), request(3.0)], [], run.slo, 1.0)
    assert write(Result(run, few, {"id": "other"}), tmp_path).exists()
    assert not list(tmp_path.glob("*.png"))


def test_numbers_for_readers():
    assert [number(value) for value in (None, "x", 0, 3.0, 3.14159, 1234.5)] == ["-", "x", "0", "3", "3.14", "1,234"]
