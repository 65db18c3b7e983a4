"""The backend: control calls over doubles of Serve's handles, requests over a double of the links. Without Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from ray.exceptions import ActorDiedError

from service.decode.modes import Static
from service.engine.request import SamplingParams, Stats
from service.errors import (
    EngineFailed,
    GenerationChangeFailed,
    MrpServeError,
    NotReady,
    ScaledToZero,
    WeightUpdateFailed,
)
from service.gateway.backend import serving
from service.ipc.data import Arrival
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
from service.messages.wire import Answer, Chunk, Ending, Failure, ReplicaRequest, Weights
from service.rayserve import ray_backend, serve_state
from service.rayserve.ray_backend import RayBackend
from tests.gateway import doubles
from tests.gateway.helpers import eventually

CARD = replace(doubles.CARD, name="m", slots=1)
ANSWER = Answer("a", (1,), Ending("length", 1, 1, Stats()))
CHUNK = Chunk(0, "a", (1,), Stats())


def request(timeout_s: float = 60.0) -> ReplicaRequest:
    return ReplicaRequest("id", Static(), SamplingParams(), 4, timeout_s, Arrival.now(), token_ids=(1,))


class Links:
    """The links: answers with `items`. Every replica that is told of has a link."""

    def __init__(self, *items: Any) -> None:
        self.items, self.waiting = items, 0
        self.updates: list[list[Status]] = []

    async def count(self, request: ReplicaRequest) -> Any:
        return self.items[0]

    async def stream(self, request: ReplicaRequest) -> AsyncIterator[Any]:
        for item in self.items:
            yield item

    async def update(self, statuses: list[Status]) -> list[Status]:
        self.updates.append(statuses)
        self.waiting = 0
        return statuses


class Handle:
    """A deployment's handle: control calls get what `control` returns or raises."""

    app_name, deployment_name = "mrp", "Generator"

    def __init__(self, control: Callable[[str], list[Any]] = lambda method: []) -> None:
        self._control, self.calls = control, 0
        self.told: list[tuple[Any, ...]] = []

    def broadcast(self, method: str, *args: Any) -> Any:
        self.calls += 1
        self.told.append((method, *args))

        async def results_async(timeout_s: float, return_exceptions: bool) -> list[Any]:
            return self._control(method)

        return SimpleNamespace(results_async=results_async)


def backend(handle: Handle, *, links: Links | None = None, ingresses: Handle | None = None, **more: Any) -> RayBackend:
    return RayBackend(links or Links(), handle, ingresses or Handle(), **more)  # type: ignore[arg-type]


async def test_answers_and_blocks_come_through() -> None:
    items = [item async for item in backend(Handle(), links=Links(CHUNK, ANSWER.ending)).stream(request())]
    assert items == [CHUNK, ANSWER.ending]
    assert await backend(Handle(), links=Links(13)).count(request()) == 13


async def test_the_links_get_the_statuses_of_the_replicas_that_answer() -> None:
    statuses, links = [Status("r0", None, CARD)], Links()
    await backend(Handle(lambda method: [*statuses, ActorDiedError()]), links=links).statuses()
    assert links.updates == [statuses]


async def test_a_service_whose_only_replica_drains_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    links = Links()
    links.update = AsyncMock(return_value=[])  # type: ignore[method-assign]
    monkeypatch.setattr(ray_backend, "describe_missing", lambda *names: "gone")
    with pytest.raises(NotReady, match="gone"):
        await backend(Handle(lambda method: [Status("r0", None, CARD)]), links=links).statuses()


async def test_while_a_request_waits_for_a_link_the_replicas_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_backend, "_POLL_S", 0.0)
    monkeypatch.setattr(ray_backend, "describe_missing", lambda *names: "gone")
    said: list[list[Any]] = [[], [], [Status("r0", None, CARD)]]
    handle, links = Handle(lambda method: said.pop(0)), Links()
    links.waiting = 2
    made = backend(handle, links=links)
    made.poll()
    made.poll()
    await eventually(lambda: made._polling is not None and made._polling.done())
    assert (handle.calls, len(links.updates)) == (3, 1)


async def test_replicas_that_failed_or_do_not_answer_are_told_apart() -> None:
    mixed = Handle(lambda method: [ActorDiedError(), Status("r1", "broken", CARD), Status("r2", None, CARD)])
    assert [status.replica for status in await backend(mixed).statuses()] == ["r1", "r2"]
    assert serving(await backend(mixed).statuses()) == CARD
    with pytest.raises(NotReady, match="r1: broken"):
        serving(await backend(Handle(lambda method: [Status("r1", "broken", CARD)])).statuses())


@pytest.mark.parametrize("error", [TimeoutError(), ActorDiedError()])
async def test_without_a_replica_it_says_what_serve_says(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(method: str) -> list[Any]:
        raise error

    deployment = SimpleNamespace(replica_states={"STARTING": 2}, message="no GPU is free", status="UPDATING")
    status = SimpleNamespace(applications={"mrp": SimpleNamespace(deployments={"Generator": deployment})})
    monkeypatch.setattr(serve_state.serve, "status", lambda: status)
    with pytest.raises(NotReady, match=r"2 starting\): no GPU is free") as caught:
        await backend(Handle(none)).statuses()
    assert caught.value.retry_after


@pytest.mark.parametrize(
    ("status", "states", "asleep"),
    [
        ("HEALTHY", {}, True),
        ("UPSCALING", {"STARTING": 1}, True),
        ("DOWNSCALING", {"STOPPING": 1}, True),
        ("HEALTHY", {"RUNNING": 1}, True),  # it has just started; routers do not know it yet
        ("UPDATING", {"STARTING": 1}, False),
        ("UNHEALTHY", {"STARTING": 1}, False),
        ("DEPLOY_FAILED", {}, False),
    ],
)
async def test_sleep_is_told_from_failure(
    status: str, states: dict[str, int], asleep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = SimpleNamespace(replica_states=states, message="", status=status)
    overview = SimpleNamespace(applications={"mrp": SimpleNamespace(deployments={"Generator": deployment})})
    monkeypatch.setattr(serve_state.serve, "status", lambda: overview)
    for scales_to_zero in (True, False):
        with pytest.raises(NotReady) as caught:
            await backend(Handle(), scales_to_zero=scales_to_zero).statuses()
        assert isinstance(caught.value, ScaledToZero) is (asleep and scales_to_zero)


async def test_what_replicas_said_last_holds_while_one_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve gives the answers of all replicas or none."""
    monkeypatch.setattr(ray_backend, "describe_missing", lambda *names: "gone")
    said: list[list[Any] | Exception] = [[Status("r0", None, CARD)], TimeoutError(), TimeoutError(), []]

    def control(method: str) -> list[Any]:
        answer = said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    links = Links()
    asked = backend(Handle(control), links=links)
    assert [await asked.statuses() for _ in range(3)] == [[Status("r0", None, CARD)]] * 3
    assert len(links.updates) == 1  # an address of the last statuses may be another program's by now
    with pytest.raises(NotReady, match="gone"):
        await asked.statuses()


async def test_it_says_what_the_last_replica_ended_of(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [[], [Status("r1", None, CARD)], []]
    failed = Failure(EngineFailed("the engine stopped: ValueError: bad"))
    asked = backend(Handle(lambda method: answers.pop(0)), links=Links(failed))
    monkeypatch.setattr(ray_backend, "describe_missing", lambda app, deployment: "none")
    assert await anext(asked.stream(request())) == failed
    asked.note_error(failed.error)
    with pytest.raises(NotReady, match="none; before, the engine stopped: ValueError: bad"):
        await asked.statuses()
    assert await asked.statuses()
    with pytest.raises(NotReady, match=r"none$"):
        await asked.statuses()


async def test_metrics_come_from_all_processes() -> None:
    here, there, replica = (Snapshot(name, 0, ()) for name in ("here", "there", "r0"))
    asked = backend(Handle(lambda method: [replica]), ingresses=Handle(lambda method: [here, there]))
    assert await asked.snapshots(here) == ([here, there], [replica])

    alone = backend(Handle())
    assert await alone.snapshots(here) == ([here], [])


async def test_the_last_metrics_hold_while_a_replica_hangs() -> None:
    """Otherwise the dashboard would be empty, and its alert pending, just when they are needed most."""
    here, replica = Snapshot("here", 0, ()), Snapshot("r0", 0, ())
    said: list[list[Any] | Exception] = [TimeoutError(), [replica], TimeoutError(), []]

    def control(method: str) -> list[Any]:
        answer = said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    asked = backend(Handle(control), ingresses=Handle(lambda method: [here]))
    assert [(await asked.snapshots(here))[1] for _ in range(4)] == [[], [replica], [replica], []]


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
    handle = Handle(lambda method: [ActorDiedError(), result])
    assert await backend(handle).control(command) == [result]
    assert handle.told == [("control", command)]

    def hang(method: str) -> list[Any]:
        raise TimeoutError

    with pytest.raises(error, match="has not answered within 3600 s"):
        await backend(Handle(hang)).control(command)


async def test_all_ingresses_are_told_and_one_that_hangs_is_not_waited_for() -> None:
    def hang(method: str) -> list[Any]:
        raise TimeoutError

    ingress = Handle(lambda method: [None, None])
    await backend(Handle(), ingresses=ingress).announce(NEW)
    assert ingress.told == [("require_weights", NEW)]
    await backend(Handle(), ingresses=Handle(hang)).announce(NEW)


def test_the_card_is_that_of_replicas_with_the_newest_weights() -> None:
    """Those of another deployment, which an update brings, count for themselves."""
    cards = [
        replace(CARD, weights=Weights(*one)) for one in ((1, "a", "m"), (2, "b", "m"), (2, "b", "m"), (0, "n", "n"))
    ]
    card = serving([Status("r", None, one) for one in cards])
    assert (card.weights, card.slots, card.num_outdated) == (Weights(2, "b", "m"), 3, 1)
