"""What keeps replicas from starting and Ray does not name: a full disk, workers that end."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.rayserve import serve_state
from service.rayserve.trouble import full_disk, last_error, trouble

MEMORY = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    import y\nMemoryError\n'
TORCHS = "warning: Error: none\nTraceback (most recent call last):\ntorch.OutOfMemoryError: 3 GiB\nsome advice\n"


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    folder = tmp_path / "ray" / "session_latest" / "logs"
    folder.mkdir(parents=True)
    return folder


def fill_disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free // 4096, f_frsize=4096))


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert full_disk(tmp_path / "nowhere") == ""
    fill_disk(monkeypatch, 65 * 2**20)
    assert full_disk(tmp_path) == ""
    fill_disk(monkeypatch, 3 * 2**20)
    assert full_disk(tmp_path) == f"the disk of {tmp_path} is full (3 MiB are free)"


def test_the_last_error_of_the_newest_worker(logs: Path) -> None:
    assert last_error(logs) == ""
    (logs / "worker-1.err").write_text(MEMORY)
    (logs / "worker-2.err").write_text("")
    (logs / "raylet.err").write_text("ValueError: other")
    assert last_error(logs) == "a worker ended with MemoryError"
    (logs / "worker-3.err").write_text("x" * 10_000 + "\n" + TORCHS)
    os.utime(logs / "worker-1.err", (1, 1))
    assert last_error(logs) == "a worker ended with OutOfMemoryError: 3 GiB"
    os.utime(logs / "worker-3.err", (1, 1))
    assert last_error(logs) == ""  # of a worker of long ago


def test_it_is_told_where_no_replica_runs(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = SimpleNamespace(replica_states={"STARTING": 1}, status="UPDATING", message="")
    none = "no replica can generate: loading, 0 of 1 replicas run (1 starting)"
    assert serve_state.describe(deployment) == none
    (logs / "worker-1.err").write_text(MEMORY)
    assert serve_state.describe(deployment) == f"{none}: a worker ended with MemoryError"
    fill_disk(monkeypatch, 0)
    assert trouble().startswith("the disk of ")
    assert serve_state.describe(deployment).startswith(f"{none}: the disk of ")


def test_rays_guesses_are_left_out() -> None:
    guesses = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR. "
    guesses += "There are some potential root causes. (1) The process was killed by the kernel OOM killer. " * 8
    line = serve_state.last_line(guesses)
    assert line.startswith("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR.")
    assert len(line) <= 200
    assert line.endswith(".")
    assert len(serve_state.last_line("x" * 900)) <= 201
