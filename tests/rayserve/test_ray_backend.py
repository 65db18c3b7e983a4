"""The backend: control calls over doubles of Serve's handles, requests over a double of the links. Without Ray."""

import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus

from service.errors import (
    ControllerAway,
    EngineFailed,
    GenerationChangeFailed,
    MrpServeError,
    NotReady,
    ScaledToZero,
    WeightUpdateFailed,
)
from service.gateway.backend import serving
from service.messages.replica_status import (
    CheckWeights,
    ControlCommand,
    ControlResult,
    PauseState,
    SetPause,
    Snapshot,
    Status,
    UpdateWeights,
)
from service.messages.wire import Weights
from service.rayserve import ray_backend
from service.rayserve.ray_backend import RayBackend
from tests.gateway import doubles

TRACEBACK = """Deploying app 'mrp' failed with exception:
Traceback (most recent call last):
  File "settings.py", line 1, in build
service.errors.SettingsError: settings: 'max_num_seq' is not a setting
"""
CARD = replace(doubles.CARD, name="m", slots=1)
STATUS = Status("r0", None, CARD)


class Links:
    def __init__(self) -> None:
        self.encode = self.stream = None
        self.updates = list[list[Status]]()
        self.reached = {"r0"}

    def reaches(self, replica: str) -> bool:
        return replica in self.reached

    async def update(self, statuses: list[Status]) -> list[Status]:
        self.updates.append(statuses)
        return statuses


class Handle:
    """A deployment's handle. Each broadcast returns or raises the next of `answers`, the last one again and again."""

    app_name, deployment_name = "mrp", "Generator"

    def __init__(self, *answers: list[Any] | Exception) -> None:
        self._answers = list(answers) or [[]]
        self.broadcasts: list[tuple[Any, ...]] = []

    def broadcast(self, method: str, *args: Any) -> Any:
        self.broadcasts.append((method, *args))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

        async def results_async(timeout_s: float, return_exceptions: bool) -> list[Any]:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return SimpleNamespace(results_async=results_async)


def backend(handle: Handle, *, links: Links | None = None, ingresses: Handle | None = None, **more: Any) -> RayBackend:
    return RayBackend(links or Links(), handle, ingresses or Handle(), **more)  # type: ignore[arg-type]


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    serve_status(monkeypatch)
    monkeypatch.setattr(ray_backend, "describe", lambda deployment, silence: "gone")


async def test_the_links_get_the_statuses_of_the_replicas_that_answer() -> None:
    links = Links()
    await backend(Handle([STATUS, ActorDiedError()]), links=links).statuses()
    assert links.updates == [[STATUS]]


@pytest.mark.usefixtures("missing")
async def test_a_service_whose_only_replica_drains_has_none() -> None:
    links = Links()
    links.update = AsyncMock(return_value=[])  # type: ignore[method-assign]
    with pytest.raises(NotReady, match="gone"):
        await backend(Handle([STATUS]), links=links).statuses()


async def test_failed_replicas_have_a_status_and_lost_ones_have_none() -> None:
    mixed = backend(Handle([ActorDiedError(), Status("r1", "broken", CARD), Status("r2", None, CARD)]))
    statuses = await mixed.statuses()
    assert [status.replica for status in statuses] == ["r1", "r2"]
    assert serving(statuses) == CARD
    with pytest.raises(NotReady, match="r1: broken"):
        serving(statuses[:1])


def serve_status(monkeypatch: pytest.MonkeyPatch, **deployment: Any) -> None:
    applications = {"mrp": SimpleNamespace(deployments={"Generator": SimpleNamespace(**deployment)})}
    serve_applications(monkeypatch, applications)


def serve_applications(monkeypatch: pytest.MonkeyPatch, applications: dict[str, Any]) -> None:
    overview = SimpleNamespace(applications=applications)
    monkeypatch.setattr(ray_backend.serve, "status", lambda: overview)


def application(status: ApplicationStatus, message: str = "", **deployments: Any) -> dict[str, Any]:
    return {"mrp": SimpleNamespace(status=status, message=message, deployments=deployments)}


@pytest.mark.parametrize("scales_to_zero", [False, True])
@pytest.mark.parametrize(
    ("applications", "reason"),
    [
        ({}, "Serve has no such application"),
        ({"other": None}, "Serve has no such application"),
        (application(ApplicationStatus.DEPLOYING), "the application is DEPLOYING"),
        (application(ApplicationStatus.DELETING, Ingress=None), "the application is DELETING"),
        (
            application(ApplicationStatus.DEPLOY_FAILED, TRACEBACK),
            "the application is DEPLOY_FAILED: SettingsError: settings: 'max_num_seq' is not a setting",
        ),
    ],
)
async def test_without_a_deployment_the_reason_is_that_of_the_application(
    applications: dict[str, Any], reason: str, scales_to_zero: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve shows no deployment while it builds a configuration. It starts no replica for a request then."""
    serve_applications(monkeypatch, applications)
    with pytest.raises(NotReady, match=f"^no replica can generate: {re.escape(reason)}$") as caught:
        await backend(Handle(), scales_to_zero=scales_to_zero).statuses()
    assert (caught.value.code, caught.value.retry_after) == ("not_ready", 5.0)


def hang() -> None:
    time.sleep(0.2)


@pytest.mark.parametrize(
    "failure", [RayActorError(), GetTimeoutError(), RayServeException("gone"), ValueError("unknown status"), hang]
)
async def test_links_that_work_are_enough_while_the_controller_is_away(
    failure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = Links()
    lonely = backend(Handle([STATUS], RayServeException("gone")), links=links)
    monkeypatch.setattr(ray_backend, "_CONTROL_S", 0.05)
    monkeypatch.setattr(ray_backend.serve, "status", Mock(side_effect=failure))
    await lonely.statuses()
    assert [await lonely.statuses() for _ in range(2)] == [[STATUS]] * 2
    links.reached.clear()
    with pytest.raises(ControllerAway, match="neither a replica nor Serve's controller responds"):
        await lonely.statuses()


@pytest.mark.parametrize("error", [TimeoutError(), ActorDiedError()])
async def test_without_a_replica_the_reason_is_that_of_serve(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_status(monkeypatch, replica_states={"STARTING": 2}, message="no GPU is free", status="UPDATING")
    with pytest.raises(NotReady, match=r"2 starting\): no GPU is free") as caught:
        await backend(Handle(error)).statuses()
    assert caught.value.retry_after


@pytest.mark.parametrize(
    ("answers", "states", "reason"),
    [
        (
            [RuntimeError("no way")],
            {"RUNNING": 2},
            "2 of 2 replicas run, but one cannot be asked: RuntimeError: no way",
        ),
        (TimeoutError(), {"RUNNING": 1}, "1 of 1 replicas run, but one does not answer within 3 s"),
        ([RuntimeError("no way")], {"STARTING": 1}, "0 of 1 replicas run (1 starting)"),
        ([], {"RUNNING": 1}, "1 of 1 replicas run"),
    ],
)
async def test_replicas_that_run_and_do_not_answer_are_told_with_the_reason(
    answers: list[Any] | Exception, states: dict[str, int], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_status(monkeypatch, replica_states=states, message="", status="HEALTHY")
    with pytest.raises(NotReady) as caught:
        await backend(Handle(answers)).statuses()
    assert caught.value.message == f"no replica can generate: loading, {reason}"


@pytest.mark.parametrize(
    ("status", "states", "asleep"),
    [
        ("HEALTHY", {}, True),
        ("UPSCALING", {"STARTING": 1}, True),
        ("HEALTHY", {"RUNNING": 1}, True),  # it has just started; routers do not know it yet
        ("UPDATING", {"STARTING": 1}, False),
        ("DEPLOY_FAILED", {}, False),
    ],
)
async def test_a_service_scaled_to_zero_is_no_failure(
    status: str, states: dict[str, int], asleep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_status(monkeypatch, replica_states=states, message="", status=status)
    for scales_to_zero in (True, False):
        with pytest.raises(NotReady) as caught:
            await backend(Handle(), scales_to_zero=scales_to_zero).statuses()
        assert isinstance(caught.value, ScaledToZero) is (asleep and scales_to_zero)


@pytest.mark.usefixtures("missing")
async def test_the_last_statuses_hold_while_a_replica_hangs() -> None:
    """Serve gives the answers of all replicas or none."""
    links = Links()
    hanging = backend(Handle([STATUS], TimeoutError(), TimeoutError(), TimeoutError(), []), links=links)
    assert [await hanging.statuses() for _ in range(3)] == [[STATUS]] * 3
    links.reached.clear()
    assert await hanging.statuses() == [replace(STATUS, reachable=False)]
    assert len(links.updates) == 1  # an address of the last statuses may be another program's by now
    with pytest.raises(NotReady, match="gone"):
        await hanging.statuses()


@pytest.mark.usefixtures("missing")
async def test_the_reason_names_the_error_of_the_last_engine() -> None:
    failing = backend(Handle([], [STATUS], []))
    failing.note_error(EngineFailed("the engine stopped: ValueError: bad"))
    with pytest.raises(NotReady, match="gone; before, the engine stopped: ValueError: bad"):
        await failing.statuses()
    assert await failing.statuses()
    with pytest.raises(NotReady, match=r"gone$"):
        await failing.statuses()


async def test_metrics_come_from_all_processes() -> None:
    first, second, replica = (Snapshot(name, 0, ()) for name in ("i0", "i1", "r0"))
    assert await backend(Handle([replica]), ingresses=Handle([first, second])).snapshots(first) == (
        [first, second],
        [replica],
    )
    assert await backend(Handle()).snapshots(first) == ([first], [])


@pytest.mark.parametrize("away", [TimeoutError(), RayActorError(), []])
async def test_metrics_of_a_trainer_stand_beside_and_hold_up_nothing(away: Any) -> None:
    ingress, replica, trainer = (Snapshot(name, 0, ()) for name in ("i0", "r0", "t0"))
    learning = backend(Handle([replica]), ingresses=Handle([ingress]), trainer=Handle([trainer], away))
    assert await learning.snapshots(ingress) == ([ingress, trainer], [replica])
    assert await learning.snapshots(ingress) == ([ingress], [replica])


async def test_the_last_metrics_hold_while_a_replica_hangs() -> None:
    """Otherwise the dashboard would be empty, and its alert pending, just when they are needed most."""
    ingress, replica = Snapshot("i0", 0, ()), Snapshot("r0", 0, ())
    hanging = backend(Handle(TimeoutError(), [replica], TimeoutError(), []), ingresses=Handle([ingress]))
    assert [(await hanging.snapshots(ingress))[1] for _ in range(4)] == [[], [replica], [replica], []]


NEW = Weights(2, "step-7", "m")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (CheckWeights(NEW), WeightUpdateFailed),
        (UpdateWeights(NEW), WeightUpdateFailed),
        (SetPause(PauseState(1, True, 2), wait=True), GenerationChangeFailed),
    ],
)
async def test_a_command_goes_to_all_replicas_and_lost_ones_are_left_out(
    command: ControlCommand, error: type[MrpServeError]
) -> None:
    result = ControlResult("r1", NEW, seconds=0.5)
    handle = Handle([ActorDiedError(), result], TimeoutError())
    assert await backend(handle).control(command) == [result]
    assert handle.broadcasts == [("control", command)]
    with pytest.raises(error, match="has not answered within 3600 s"):
        await backend(handle).control(command)


async def test_all_ingresses_get_the_weights_and_a_hanging_one_is_not_waited_for() -> None:
    ingresses = Handle([None, None], TimeoutError())
    for _ in range(2):
        await backend(Handle(), ingresses=ingresses).announce(NEW)
    assert ingresses.broadcasts == [("require_weights", NEW)] * 2


def test_the_card_is_that_of_replicas_with_the_newest_weights() -> None:
    """Those of another deployment, which an update brings, count for themselves."""
    versions = ((1, "a", "m"), (2, "b", "m"), (2, "b", "m"), (0, "n", "n"))
    cards = [replace(CARD, weights=Weights(*version)) for version in versions]
    card = serving([Status(f"r{number}", None, card) for number, card in enumerate(cards)])
    assert (card.weights, card.slots, card.num_outdated) == (Weights(2, "b", "m"), 3, 1)
