"""locust itself, as its own process, against a service of known behaviour."""

import csv
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from loadtest.generator import rows
from loadtest.harness import percentile
from tests.loadtest.fake import Fake, serve

ROOT = Path(__file__).parents[2]
LOCUST = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py"]


def locust(url, folder, *arguments):
    """Runs locust to its end. Its process, the rows of requests, and the levels."""
    file = folder / "rows.jsonl"
    command = [*LOCUST, "--host", url, "--headless", "--only-summary"]
    command += ["--rows", str(file), "--csv", str(folder / "out"), *map(str, arguments)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert file.exists(), process.stderr
    every = rows.read(file)
    requests = [row for row in every if isinstance(row, rows.Request)]
    return process, requests, [(row.seconds, row.level) for row in every if isinstance(row, rows.Level)]


def statistics(folder):
    with (folder / "out_stats.csv").open() as file:
        return {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}


def test_a_closed_loop_of_all_users_follows_its_levels_and_fills_locusts_statistics(tmp_path):
    fake = Fake(block_s=0.02)
    with serve(fake) as url:
        process, requests, levels = locust(url, tmp_path, "--levels", "1:6,1:12", "--modes", "static")
    assert process.returncode == 0, process.stderr
    assert levels == [(1, 6), (1, 12)]
    assert len(Counter(row.route for row in requests)) == 6
    assert all(row.ok and row.tokens == 8 for row in requests)
    for path, body in fake.requests:
        assert ("messages" in body) == (path != "/v1/completions")
        assert ("prompt" in body) == (path == "/v1/completions")
    table, name = statistics(tmp_path), "/generate (stream) static"
    count = str(sum(row.route == "/generate (stream)" for row in requests))
    for kind in ("POST", "TTFB ms", "block ms", "tokens/s", "tok/100f"):
        assert table[kind, name]["Request Count"] == count
    assert table["tok/100f", name]["95%"] == "250"
    assert 20 <= float(table["TTFB ms", name]["Median Response Time"]) < 1000
    posts = sum(int(row["Request Count"]) for (kind, _), row in table.items() if kind == "POST")
    assert posts == len(requests)


@pytest.mark.parametrize("workers", [(), pytest.param(("-u", 2, "--processes", 2), marks=pytest.mark.slow)])
def test_latency_of_random_arrivals_counts_from_the_intended_start(tmp_path, workers):
    """One stall of a second: every arrival in it waits for its end, and is counted."""
    fake = Fake(block_s=0.005, stall=(0.5, 1.0))
    with serve(fake) as url:
        arguments = ("StreamUser", "--loop", "open", "--levels", "2:30", *workers)
        process, requests, _ = locust(url, tmp_path, *arguments)
    assert process.returncode == 0, process.stderr
    assert 20 <= len(requests) == len(fake.requests) <= 100  # 60 arrivals, fewer where a core is rare
    assert int(statistics(tmp_path)["", "Aggregated"]["Request Count"]) == len(requests)
    assert len({body["seed"] for _, body in fake.requests}) == len(requests)
    times = [row.total_ms for row in requests]
    assert sum(time > 400 for time in times) >= 6  # 15 are expected; a closed loop of one user would see one
    assert percentile(times, 0.99) > 700
    assert percentile(times, 0.5) < 700


@pytest.mark.parametrize("limit", [("1s",), pytest.param(("5s", "--processes", 2), marks=pytest.mark.slow)])
def test_a_run_of_some_seconds_counts_every_request(tmp_path, limit):
    """Also those in progress at its end, and those that a worker has not reported by then."""
    fake = Fake(block_s=0.8)
    with serve(fake) as url:
        process, requests, _ = locust(url, tmp_path, "StreamUser", "-u", 8, "-r", 8, "-t", *limit)
    assert process.returncode == 0, process.stderr
    assert len(requests) == len(fake.requests) > 0
    assert all(row.ok for row in requests)
    assert int(statistics(tmp_path)["", "Aggregated"]["Request Count"]) == len(requests)
    [printed] = re.findall(r"^POST .* default +(\d+) ", process.stderr, re.MULTILINE)[:1]
    assert int(printed) == len(requests)
