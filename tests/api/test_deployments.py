"""A replica whose engine has stopped, and what is told of one that cannot start. Without Ray."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from service.api import deployments, serve_state

TRACEBACK = """A replica failed to start with exception. Retrying 2 more time(s). Error:
\x1b[36mray::ServeReplica:mrp:Generator.initialize()\x1b[39m (pid=1, ip=127.0.0.1)
  File "weights.py", line 1, in load
service.errors.CheckpointError: /models/m: weight 'w' is missing

"""


class Exited(BaseException):
    """Instead of the end of the process."""


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
    ("states", "status", "message", "said"),
    [
        ({"STARTING": 2}, "UPDATING", "", "no replica can generate: loading, 0 of 2 replicas run (2 starting)"),
        ({"RUNNING": 1}, "UNHEALTHY", "lost", "no replica can generate: loading, 1 of 1 replicas run: lost"),
        (
            {},
            "DEPLOY_FAILED",
            TRACEBACK,
            "no replica can generate: given up, 0 of 0 replicas run: CheckpointError: /models/m: weight 'w' is missing",
        ),
    ],
)
def test_a_deployment_without_replicas_in_one_line(
    states: dict[str, int], status: str, message: str, said: str
) -> None:
    deployment = SimpleNamespace(replica_states=states, status=status, message=message)
    assert serve_state.describe(deployment) == said
