"""Rows are summed up by level with the right numbers, and `make loadtest` prints them and keeps locust's page."""

import asyncio

import pytest

from loadtest.driver import drive, levels
from loadtest.generator.rows import UNFINISHED, Level
from loadtest.run import parse, run, served_plans
from tests.loadtest.fake import Fake, request, serve


def rows_of_a_closed_loop():
    """Level 1 from 0 s on, level 4 from 10 s on; every request streams 12 tokens."""
    warming = [request(at=0.5, first=5000.0)]
    first = [request(at=at) for at in (3.0, 5.0, 7.0, 9.0)]
    second = [request(at=13.0 + number / 2, first=80.0 if number % 2 else 300.0) for number in range(12)]
    failed = [request(at=14.0, status=429, error="busy", blocks=0, tokens=0)]
    cut = [request(at=19.0, status=0, error=UNFINISHED, blocks=1)]
    return [Level(0.0, 10.0, 1), *warming, *first, Level(10.0, 10.0, 4), *second, *failed, *cut]


def test_levels_count_what_was_due_and_the_tokens_that_came():
    (users, single), (more_users, four) = levels(rows_of_a_closed_loop(), warm_s=2.0)
    assert (users, single.requests, single.failed) == (1, 4, 0)
    assert single.requests_per_s == 5 / 8
    assert single.tokens_per_s == 5 * 12 / 8  # the blocks of a request that was due in the warm-up included
    assert (single.first_block_p95_ms, single.gap_p95_ms, single.total_p50_ms) == (50, 20, 90)
    assert (more_users, four.requests, four.failed) == (4, 14, 2)
    assert (four.first_block_p50_ms, four.first_block_p95_ms) == (80, 300)
    assert four.tokens_per_s == (12 * 12 + 4) / 8


def test_a_level_without_an_answer_has_no_times():
    [(_, seen)] = levels([Level(0.0, 10.0, 1), request(at=1.0, status=500, blocks=0)], warm_s=60.0)
    assert (seen.requests, seen.first_block_p95_ms, seen.gap_p50_ms) == (0, None, None)  # half of it is warm-up


async def test_without_modes_there_is_a_run_for_each_that_is_served_and_one_for_all():
    with serve(Fake()) as url:
        assert await served_plans(url, "") == ["static", "remask@threshold=0.5", "static,remask@threshold=0.5"]


def test_a_run_prints_levels_and_keeps_locusts_page(tmp_path, monkeypatch, capsys):
    fake = Fake()
    with serve(fake) as url:
        words = ["run", "--url", url, "--modes", "static,remask", "--levels", "1:1,1:2", "--temperature", "0.5"]
        monkeypatch.setattr("sys.argv", [*words, "--out", str(tmp_path)])
        asyncio.run(run(*parse()))
    heads, *lines = capsys.readouterr().out.splitlines()
    assert heads.split()[:3] == ["run", "level", "requests/s"]
    assert [line.split()[:2] for line in lines] == [["1-mixed", "1"], ["1-mixed", "2"]]
    assert all(float(line.split()[3]) > 0 and line.split()[-1] == "0" for line in lines)
    assert {body["temperature"] for _, body in fake.requests} == {0.5}  # an option of the locustfile
    for page in ("1-mixed.html", "1-mixed_stats.csv"):
        assert "/generate (stream) remask" in (tmp_path / page).read_text()


async def test_a_wrong_option_ends_a_run_with_locusts_reason(tmp_path):
    with pytest.raises(SystemExit, match="loadtest: mode 'static:0'; allowed: MODE"):
        await drive("http://127.0.0.1:9", tmp_path / "wrong", "--modes", "static:0")
    assert "Traceback" not in (tmp_path / "wrong.log").read_text()
