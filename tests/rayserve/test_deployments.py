"""A replica whose engine has stopped, and the message for one that cannot start. Without Ray."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from service.rayserve import deployments, serve_state

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
    monkeypatch.setattr(deployments, "_LAST_WORDS_S", 0.0)
    with caplog.at_level(logging.CRITICAL, deployments._log.name), pytest.raises(Exited, match="1"):
        await deployments._exit_when_failed(generator)
    assert "ValueError: broken" in caplog.text


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
