"""The lines on the terminal while a service does not serve yet, in virtual time and without Ray."""

from types import SimpleNamespace
from typing import Any

import pytest

from service.cli import readiness
from service.errors import SettingsError

TRACEBACK = """\x1b[36mray::ServeReplica:mrp:Generator.initialize()\x1b[39m (pid=1, ip=127.0.0.1)
  File "service/engine/kv_cache.py", line 19, in __init__
    self._free = list(range(pages))
"""
MEMORY = TRACEBACK + "MemoryError"
MISSING = TRACEBACK + "service.errors.CheckpointError: /models/m: weight 'w' is missing"
SCHEDULED = "1 replicas have taken more than 30s to be scheduled. Resources required for each replica: {'GPU': 1}."


def failed(error: str, left: int) -> str:
    return f"A replica failed to start with exception. Retrying {left} more time(s). Error:\n{error}"


def deployment(states: dict[str, int], message: str = "", status: str = "UPDATING") -> Any:
    return SimpleNamespace(replica_states=states, message=message, status=status)


def application(status: str = "DEPLOYING", message: str = "", **deployments: Any) -> Any:
    return SimpleNamespace(status=status, message=message, deployments=deployments)


class Terminal:
    """The lines and their times."""

    def __init__(self) -> None:
        self.now, self.lines = 0.0, list[tuple[float, str]]()
        self.news = readiness.News(lambda text: self.lines.append((self.now, text)), lambda: self.now)

    def look(self, seconds: float, **deployments: Any) -> None:
        """Shows the same status for some seconds, every quarter of a second."""
        for _ in range(int(4 * seconds)):
            self.news.look(deployments)
            self.now += 0.25


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


UP = deployment({"RUNNING": 1}, status="HEALTHY")


def test_a_start_of_a_few_seconds_needs_no_words(terminal: Terminal) -> None:
    terminal.look(2)
    terminal.look(3, Generator=deployment({"STARTING": 1}), Ingress=deployment({"STARTING": 1}))
    terminal.look(4, Generator=deployment({"STARTING": 1}), Ingress=UP)
    terminal.look(20, Generator=UP, Ingress=UP)
    assert not terminal.lines


def test_a_long_wait_is_told_once_and_again_when_more_replicas_run(terminal: Terminal) -> None:
    terminal.look(100, Generator=deployment({"STARTING": 2}), Ingress=UP)
    terminal.look(100, Generator=deployment({"RUNNING": 1, "STARTING": 1}), Ingress=UP)
    assert terminal.lines == [(10.0, "0 of 2 replicas run (2 starting)"), (100.0, "1 of 2 replicas run (1 starting)")]


def test_every_failure_is_told_at_once_and_once(terminal: Terminal) -> None:
    terminal.look(4, Generator=deployment({"STARTING": 1}), Ingress=UP)
    for left in (2, 1):
        message = failed(MEMORY, left)
        terminal.look(1, Generator=deployment({"STOPPING": 1, "STARTING": 1}, message), Ingress=UP)
        terminal.look(30, Generator=deployment({"STARTING": 1}, message), Ingress=UP)
    where = "MemoryError (service/engine/kv_cache.py:19)"
    assert terminal.lines == [
        (4.0, f"0 of 1 replicas run (1 stopping, 1 starting): {where}; 2 more tries"),
        (35.0, f"0 of 1 replicas run (1 stopping, 1 starting): {where}; 1 more tries"),
    ]


def test_an_ingress_that_fails_is_told_before_replicas_that_load(terminal: Terminal) -> None:
    broken = deployment({"STARTING": 1}, failed(MEMORY, 2))
    terminal.look(5, Generator=deployment({"STARTING": 1}), Ingress=broken)
    [(_, lines)] = terminal.lines
    assert lines.startswith("Ingress: 0 of 1 replicas run (1 starting): MemoryError")


def refusal(status_of_application: Any) -> str:
    with pytest.raises(SettingsError) as refused:
        readiness.refuse(status_of_application)
    return refused.value.message


def test_a_checkpoint_that_cannot_be_loaded_is_not_tried_again() -> None:
    status_of_application = application(Generator=deployment({"STARTING": 1}, failed(MISSING, 2)), Ingress=UP)
    assert (
        refusal(status_of_application) == "the service did not start: CheckpointError: /models/m: weight 'w' is missing"
    )


def test_when_serve_gives_up_the_last_failure_is_told_and_where_it_was() -> None:
    message = f"The deployment failed to start 3 times in a row. See controller logs for details. Error:\n{MEMORY}"
    generator = deployment({}, message, "DEPLOY_FAILED")
    status_of_application = application(
        "DEPLOY_FAILED", "Failed to update the deployments ['Generator'].", Generator=generator
    )
    assert refusal(status_of_application) == (
        "the service did not start: MemoryError (service/engine/kv_cache.py:19), 3 times in a row"
    )


def test_an_application_that_serve_refuses_as_a_whole() -> None:
    assert refusal(application("DEPLOY_FAILED", "Traceback\nValueError: no")) == (
        "the service did not start: ValueError: no"
    )


def test_it_waits_until_the_application_runs_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    states, answers = iter(["DEPLOYING", "RUNNING", "DEPLOYING", "RUNNING", "RUNNING"]), iter(["no", "no", ""])
    overview = lambda: SimpleNamespace(applications={"mrp": application(next(states), Generator=UP)})  # noqa: E731
    monkeypatch.setattr(readiness.serve, "status", overview)
    monkeypatch.setattr(readiness, "_POLL_S", 0)
    port: Any = SimpleNamespace(unhealthy=lambda: next(answers))
    readiness.wait_until_ready("mrp", port, print)
    assert next(states, None) is next(answers, None) is None


def test_why_nothing_is_answered_is_told_after_a_short_while_and_when_it_changes(terminal: Terminal) -> None:
    terminal.look(12, Generator=deployment({"STARTING": 1}), Ingress=UP)
    for reason, seconds in (("refused", 2), ("503", 30), ("503", 20), ("refused", 1), ("timeout", 9)):
        for _ in range(4 * seconds):
            terminal.news.runs_without_answer(reason)
            terminal.now += 0.25
    waiting = "waiting for the first answer:"
    assert terminal.lines == [
        (10.0, "0 of 1 replicas run (1 starting)"),
        (15.0, f"{waiting} 503"),
        (64.0, f"{waiting} refused"),
        (67.0, f"{waiting} timeout"),
    ]
