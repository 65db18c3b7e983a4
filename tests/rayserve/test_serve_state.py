"""Why no replica runs: Serve's message in one line, a full disk, workers that end. And the end of a failed replica."""

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.rayserve import deployments, serve_state
from service.rayserve.trouble import full_disk, last_error, trouble

TRACEBACK = """A replica failed to start with exception. Retrying 2 more time(s). Error:
\x1b[36mray::ServeReplica:mrp:Generator.initialize()\x1b[39m (pid=1, ip=127.0.0.1)
  File "weights.py", line 1, in load
service.errors.CheckpointError: /models/m: weight 'w' is missing

"""


TORCHS = """A replica failed to start with exception. Retrying 1 more time(s). Error:
Traceback (most recent call last):
  File "service/engine/kv_cache.py", line 19, in __init__
    self._free = list(range(pages))
                 ^^^^^^^^^^^^^^^^^^
torch.OutOfMemoryError: none
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""

LOST = """A replica failed to start with exception. Retrying 1 more time(s). Error:
  File "ray/_private/worker.py", line 1055, in get_objects
    raise value
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: ServeReplica:mrp:Generator
\tpid: 20181
The actor is dead: it has died."""

SLOW = """Deployment 'Generator' in application 'mrp' has 1 replicas that have taken more than 30s to initialize.
This may be caused by a slow __init__ or reconfigure method."""


MEMORY_ERROR = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    import y\nMemoryError\n'
OUT_OF_MEMORY = "warning: Error: none\nTraceback (most recent call last):\ntorch.OutOfMemoryError: 3 GiB\nsome advice\n"


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
    (logs / "worker-1.err").write_text(MEMORY_ERROR)
    (logs / "worker-2.err").write_text("")
    (logs / "raylet.err").write_text("ValueError: other")
    assert last_error(logs) == "a worker ended with MemoryError"
    (logs / "worker-3.err").write_text("x" * 10_000 + "\n" + OUT_OF_MEMORY)
    os.utime(logs / "worker-1.err", (1, 1))
    assert last_error(logs) == "a worker ended with OutOfMemoryError: 3 GiB"
    os.utime(logs / "worker-3.err", (1, 1))
    assert last_error(logs) == ""  # of a worker of long ago


def test_the_trouble_is_named_where_no_replica_runs(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = SimpleNamespace(replica_states={"STARTING": 1}, status="UPDATING", message="")
    none = "no replica can generate: loading, 0 of 1 replicas run (1 starting)"
    assert serve_state.describe(deployment) == none
    (logs / "worker-1.err").write_text(MEMORY_ERROR)
    assert serve_state.describe(deployment) == f"{none}: a worker ended with MemoryError"
    fill_disk(monkeypatch, 0)
    assert trouble().startswith("the disk of ")
    assert serve_state.describe(deployment).startswith(f"{none}: the disk of ")


def test_only_the_first_sentence_of_a_guess_of_ray_is_left() -> None:
    guesses = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR. "
    guesses += "There are some potential root causes. (1) The process was killed by the kernel OOM killer. " * 8
    line = serve_state.last_line(guesses)
    assert line.startswith("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR.")
    assert len(line) <= 200
    assert line.endswith(".")
    assert len(serve_state.last_line("x" * 900)) <= 201


@pytest.mark.parametrize(
    ("states", "status", "message", "line"),
    [
        ({"STARTING": 2}, "UPDATING", "", "no replica can generate: loading, 0 of 2 replicas run (2 starting)"),
        ({"RUNNING": 1}, "UNHEALTHY", "lost", "no replica can generate: loading, 1 of 1 replicas run: lost"),
        (
            {},
            "DEPLOY_FAILED",
            TRACEBACK,
            "no replica can generate: given up, 0 of 0 replicas run: CheckpointError: /models/m: weight 'w' is missing",
        ),
        (
            {"STOPPING": 1, "STARTING": 1},
            "UPDATING",
            TORCHS,
            "no replica can generate: loading, 0 of 1 replicas run (1 stopping, 1 starting): OutOfMemoryError: none",
        ),
        (
            {"STARTING": 1},
            "UPDATING",
            LOST,
            "no replica can generate: loading, 0 of 1 replicas run (1 starting): The actor is dead: it has died.",
        ),
        ({"STARTING": 1}, "UPDATING", SLOW, "no replica can generate: loading, 0 of 1 replicas run (1 starting)"),
    ],
)
def test_a_deployment_without_replicas_in_one_line(
    states: dict[str, int], status: str, message: str, line: str
) -> None:
    deployment = SimpleNamespace(replica_states=states, status=status, message=message)
    assert serve_state.describe(deployment) == line


@pytest.mark.parametrize(
    ("message", "position"), [(TORCHS, "service/engine/kv_cache.py:19"), (LOST, ""), (SLOW, ""), ("", "")]
)
def test_the_position_of_the_failure_of_a_replica(message: str, position: str) -> None:
    assert serve_state.raised_at(message) == position


class Exited(BaseException):
    """Raised instead of ending the process."""


async def test_a_replica_ends_when_its_engine_has_stopped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(status: int) -> None:
        raise Exited(status)

    failures = iter((None, None, "ValueError: broken"))
    generator: Any = SimpleNamespace(status=lambda: SimpleNamespace(failure=next(failures)))
    monkeypatch.setattr(deployments.os, "_exit", leave)
    monkeypatch.setattr(deployments.logging, "shutdown", lambda: None)
    monkeypatch.setattr(deployments, "_GRACE_S", 0.0)
    with caplog.at_level(logging.CRITICAL, "service.rayserve.deployments"), pytest.raises(Exited, match="1"):
        await deployments._exit_when_failed(generator)
    assert "ValueError: broken" in caplog.text
