"""locust itself, as its own process, against a service of known behaviour."""

import csv
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from loadtest.generator import rows
from loadtest.report.summary import percentile
from tests.loadtest.fake import Fake, serve

ROOT = Path(__file__).parents[2]


def locust(url, folder, *arguments):
    """Runs locust to its end; its exit status, what it said and the raw rows."""
    file = folder / "rows.jsonl"
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--host", url, "--headless"]
    command += ["--only-summary", "--rows", str(file), "--csv", str(folder / "out"), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert file.exists(), done.stderr
    return done, list(rows.read(file))


def requests(found):
    return [row for row in found if isinstance(row, rows.Request)]


def statistics(folder):
    with (folder / "out_stats.csv").open() as file:
        return {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}


def test_a_closed_loop_follows_its_levels_and_locust_shows_our_measures(tmp_path):
    with serve(Fake(block_s=0.02)) as url:
        done, found = locust(url, tmp_path, "StreamUser", "--levels", "1:1,2:3", "--modes", "static")
    assert done.returncode == 0, done.stderr
    asked = requests(found)
    assert len(asked) > 20
    assert all(row.ok and row.tokens == 8 for row in asked)
    assert [(row.stage, row.level) for row in found if isinstance(row, rows.Level)] == [(0, 1), (1, 3)]
    assert any(isinstance(row, rows.Client) for row in found)
    shown = statistics(tmp_path)
    count = str(len(asked))
    for kind in ("POST", "TTFB ms", "block ms", "tokens/s", "tok/100f"):
        assert shown[kind, "/generate (stream) static"]["Request Count"] == count
    assert shown["tok/100f", "/generate (stream) static"]["95%"] == "250"
    assert 20 <= float(shown["TTFB ms", "/generate (stream) static"]["Median Response Time"]) < 1000
    assert shown["", "Aggregated"]["Request Count"] == count


def test_users_of_all_routes(tmp_path):
    fake = Fake()
    with serve(fake) as url:
        done, found = locust(url, tmp_path, "--levels", "2:12")
    assert done.returncode == 0, done.stderr
    routes = Counter(row.route for row in requests(found))
    assert len(routes) == 6
    assert all(row.ok and row.tokens == 8 for row in requests(found))
    for path, body in fake.asked:
        assert ("messages" in body) == (path != "/v1/completions")
        assert ("prompt" in body) == (path == "/v1/completions")


def test_latency_counts_from_the_intended_start(tmp_path):
    """One stall of a second: every arrival in it waits for its end, and is counted."""
    stall = {"block_s": 0.005, "stall": (1.0, 1.0)}
    with serve(Fake(**stall)) as url:
        done, found = locust(url, tmp_path, "StreamUser", "--loop", "open", "--levels", "4:25")
    assert done.returncode == 0, done.stderr
    times = [row.total_ms for row in requests(found)]
    assert len(times) > 60
    looks = [row for row in found if isinstance(row, rows.Client)]
    due = {row.at for row in requests(found)}
    assert any(look.oldest is not None for look in looks)
    assert all(look.oldest is None or look.oldest in due for look in looks)
    for look in looks:  # what has ended is written before
        before = {row.at for row in found[: found.index(look)] if isinstance(row, rows.Request)}
        assert all(at in before for at in due if at < (look.oldest or look.at) - 0.1)
    assert sum(time > 400 for time in times) >= 6  # 15 are expected; a closed loop of one user would see one
    assert percentile(times, 0.99) > 700
    assert percentile(times, 0.5) < 700


def test_two_workers_share_the_arrivals_and_send_all_rows_to_the_master(tmp_path):
    fake = Fake()
    with serve(fake) as url:
        arguments = ("StreamUser", "--loop", "open", "--levels", "4:15", "-u", 2, "--processes", 2)
        done, found = locust(url, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert 10 <= len(requests(found)) == len(fake.asked) <= 90  # 60 arrivals, fewer where a core is rare
    assert len({row.process for row in found if isinstance(row, rows.Client)}) == 2
    assert int(statistics(tmp_path)["", "Aggregated"]["Request Count"]) == len(fake.asked)
    seeds = [body["seed"] for _, body in fake.asked]
    assert len(set(seeds)) == len(seeds)


def test_a_trace_is_followed(tmp_path):
    recorded = tmp_path / "trace.jsonl"
    recorded.write_text("0\n0.5\n1.5\n")
    with serve(Fake()) as url:
        done, found = locust(url, tmp_path, "StreamUser", "--loop", "trace", "--trace", recorded)
    assert done.returncode == 0, done.stderr
    [level] = [row for row in found if isinstance(row, rows.Level)]
    assert level.level == 2.0
    times = sorted(row.at for row in requests(found))
    assert [at - times[0] for at in times] == pytest.approx([0, 0.5, 1.5], abs=0.01)


def test_refusals_are_failures_and_waited_out(tmp_path):
    with serve(Fake(status=429)) as url:
        done, found = locust(url, tmp_path, "GenerateUser", "--levels", "2:1")
    assert done.returncode == 1
    refused = requests(found)
    assert 2 <= len(refused) <= 12  # Retry-After is 0.2 s
    assert {(row.status, row.error) for row in refused} == {(429, "busy: later")}


def test_the_web_page_asks_for_our_options_and_shows_our_measures():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fake = Fake()
    with serve(fake) as url, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as page:
        command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--host", url]
        command += ["--web-host", "127.0.0.1", "--web-port", str(port), "StreamUser"]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        try:
            form = eventually(lambda: page.get("/").text)
            assert '"modes": {' in form
            assert '"rows": {' not in form
            asked = {
                "user_count": 2,
                "spawn_rate": 2,
                "host": url,
                "modes": "remask@threshold=0.5",
                "temperature": "0.5",
            }
            assert page.post("/swarm", data=asked).json()["success"]
            eventually(lambda: "TTFB ms" in page.get("/stats/requests").text)
        finally:
            process.terminate()
            process.wait(30)
    body = fake.asked[0][1]
    assert (body["mode"], body["threshold"], body["temperature"]) == ("remask", 0.5, 0.5)


def eventually(what):
    """What it gives once that is something."""
    deadline = time.monotonic() + 45
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if found := what():
                return found
        time.sleep(0.1)
    pytest.fail("nothing within 45 s")


def test_wrong_options_end_it_with_one_line(tmp_path):
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--modes", "static:0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "loadtest: mode 'static:0'; allowed:" in done.stderr
    assert "Traceback" not in done.stderr
