"""The backend over Serve's handles: answers, errors, cancellation, missing replicas. Without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec import structs
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from service import wire
from service.arrival import Arrival
from service.decode.modes import Static
from service.engine.request import SamplingParams, Stats
from service.errors import (
    Asleep,
    DeadlineExceeded,
    EngineFailed,
    ExchangeFailed,
    MrpServeError,
    NotReady,
    QueueFull,
    ReplicaLost,
)
from service.rayserve import ray_backend, serve_state
from service.rayserve.handles import HandleRequests
from service.rayserve.ray_backend import RayBackend
from service.wire import Answer, Chunk, Ending, Exchanged, Failure, Resume, Snapshot, Status, Weights, Work
from tests.clock import Clock
from tests.gateway import doubles
from tests.gateway.helpers import eventually

CARD = replace(doubles.CARD, name="m", places=1)
ANSWER = Answer("a", (1,), Ending("length", 1, 1, Stats()))
CHUNK = Chunk(0, "a", (1,), Stats())


def work(timeout_s: float = 60.0) -> Work:
    return Work("id", Static(), SamplingParams(), 4, timeout_s, Arrival.now(), token_ids=(1,))


class Response:
    """A Serve response: items one after the other. An exception is raised; None waits for ever."""

    def __init__(self, items: tuple[Any, ...]) -> None:
        self.items, self.cancelled = iter(items), False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        item = next(self.items, StopAsyncIteration())
        if item is None:
            await asyncio.Event().wait()
        if isinstance(item, BaseException):
            raise item
        return item

    def __await__(self) -> Any:
        return self.__anext__().__await__()

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """A deployment's handle: requests get `items`, control calls what `control` returns or raises."""

    app_name, deployment_name = "mrp", "Generator"

    def __init__(self, *items: Any, control: Callable[[str], list[Any]] = lambda method: []) -> None:
        self.response, self._control, self.calls = Response(items), control, 0
        self.told: list[tuple[Any, ...]] = []

    def options(self, *, method_name: str, **_: Any) -> Any:
        assert method_name in {"stream", "count"}
        return SimpleNamespace(remote=lambda sent: self.response)

    def broadcast(self, method: str, *args: Any) -> Any:
        self.calls += 1
        self.told.append((method, *args))

        async def results_async(timeout_s: float, return_exceptions: bool) -> list[Any]:
            return self._control(method)

        return SimpleNamespace(results_async=results_async)


def backend(handle: Handle, ingress: Handle | None = None, may_sleep: bool = False) -> RayBackend:
    requests: Any = HandleRequests(handle, lambda how: None)  # type: ignore[arg-type]
    return RayBackend(requests, handle, ingress or Handle(), may_sleep)  # type: ignore[arg-type]


def task_error() -> RayTaskError:
    return RayTaskError("stream", "a traceback", ValueError("a bug"))


LOST: list[tuple[BaseException, type[MrpServeError], int]] = [
    (BackPressureError(num_queued_requests=9, max_queued_requests=9), QueueFull, 429),
    (ActorDiedError(), ReplicaLost, 503),
    (ActorUnavailableError("away", None), ReplicaLost, 503),
    (DeploymentUnavailableError(SimpleNamespace(name="Generator", app_name="mrp")), NotReady, 503),  # type: ignore[arg-type]
]


async def test_answers_and_blocks_come_through() -> None:
    items = [item async for item in backend(Handle(CHUNK, ANSWER.ending)).stream(work())]
    assert items == [CHUNK, ANSWER.ending]
    assert await backend(Handle(13)).count(work()) == 13


@pytest.mark.parametrize(("error", "kind", "status"), LOST, ids=lambda value: type(value).__name__)
async def test_serves_errors_become_ours(error: BaseException, kind: type[MrpServeError], status: int) -> None:
    with pytest.raises(kind) as caught:
        await anext(backend(Handle(error)).stream(work()))
    assert type(caught.value) is kind
    assert (caught.value.status, bool(caught.value.retry_after)) == (status, True)
    items = backend(Handle(CHUNK, error)).stream(work())
    assert await anext(items) == CHUNK
    with pytest.raises(kind):
        await anext(items)


async def test_a_bug_in_a_replica_stays_one() -> None:
    with pytest.raises(RayTaskError):
        await anext(backend(Handle(task_error())).stream(work()))


async def test_who_waits_too_long_for_a_replica_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_GRACE_S", 0.0)
    handle = Handle(None)
    with pytest.raises(DeadlineExceeded, match=r"timeout_s is 0\.001"):
        await anext(backend(handle).stream(work(0.001)))
    assert handle.response.cancelled


async def test_a_block_that_takes_its_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ingress limits only the wait for a replica. The engine limits the time of a running stream."""
    monkeypatch.setattr(wire, "_GRACE_S", 0.0)
    items = backend(Handle(CHUNK, None)).stream(work(0.001))
    assert await anext(items) == CHUNK
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(items), 0.05)


async def test_who_leaves_is_cancelled_in_the_replica() -> None:
    unary, streamed = Handle(None), Handle(CHUNK, None)
    asked = asyncio.ensure_future(anext(backend(unary).stream(work())))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    items = backend(streamed).stream(work())
    await anext(items)
    await items.aclose()
    assert unary.response.cancelled
    assert streamed.response.cancelled


async def test_the_way_of_requests_hears_of_the_replicas_that_answer() -> None:
    statuses, requests = [Status("r0", None, CARD)], AsyncMock()
    handle: Any = Handle(control=lambda method: [*statuses, ActorDiedError()])
    await RayBackend(requests, handle, handle).card()
    requests.learn.assert_awaited_once_with(statuses)


async def test_the_card_is_asked_for_once_a_second() -> None:
    handle = Handle(control=lambda method: [Status("r0", None, CARD)])
    asked = backend(handle)
    assert [await asked.card() for _ in range(3)] == [CARD] * 3
    assert handle.calls == 1


async def test_requests_do_not_wait_while_the_card_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_backend, "_FRESH_S", 0.0)
    monkeypatch.setattr(ray_backend, "why_none", lambda *names: "gone")
    one, other = (Status(name, None, CARD) for name in ("r0", "r1"))
    said = [[one], [one, other], [], []]
    handle = Handle(control=lambda method: said.pop(0))
    asked = backend(handle)
    assert (await asked.card()).places == 1
    assert [(await asked.card()).places for _ in range(5)] == [1] * 5
    await eventually(lambda: asked._renewing is None)
    assert handle.calls == 2
    assert (await asked.card()).places == 2
    await eventually(lambda: asked._renewing is None)
    with pytest.raises(NotReady, match="gone"):
        await asked.card()


async def test_replicas_that_failed_or_do_not_answer_are_told_apart() -> None:
    mixed = Handle(control=lambda method: [ActorDiedError(), Status("r1", "broken", CARD), Status("r2", None, CARD)])
    assert [status.replica for status in await backend(mixed).statuses()] == ["r1", "r2"]
    assert await backend(mixed).card() == CARD
    with pytest.raises(NotReady, match="r1: broken"):
        await backend(Handle(control=lambda method: [Status("r1", "broken", CARD)])).card()


@pytest.mark.parametrize("error", [TimeoutError(), ActorDiedError()])
async def test_without_a_replica_it_says_what_serve_says(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(method: str) -> list[Any]:
        raise error

    deployment = SimpleNamespace(replica_states={"STARTING": 2}, message="no GPU is free", status="UPDATING")
    status = SimpleNamespace(applications={"mrp": SimpleNamespace(deployments={"Generator": deployment})})
    monkeypatch.setattr(serve_state.serve, "status", lambda: status)
    with pytest.raises(NotReady, match=r"2 starting\): no GPU is free") as caught:
        await backend(Handle(control=none)).card()
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
    for may_sleep in (True, False):
        with pytest.raises(NotReady) as caught:
            await backend(Handle(), may_sleep=may_sleep).card()
        assert isinstance(caught.value, Asleep) is (asleep and may_sleep)


async def test_a_lost_replica_is_noticed_before_the_next_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_backend, "_FRESH_S", 0.0)
    monkeypatch.setattr(ray_backend, "_BELIEVED_S", 0.0)
    answers = [[Status("r0", None, CARD)], []]
    asked = backend(Handle(control=lambda method: answers.pop(0)))
    monkeypatch.setattr(ray_backend, "why_none", lambda app, deployment: "gone")
    assert await asked.card() == CARD
    with pytest.raises(NotReady, match="gone"):
        await asked.card()


async def test_what_replicas_said_last_holds_while_one_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve gives the answers of all replicas or none."""
    monkeypatch.setattr(ray_backend, "_FRESH_S", 0.0)
    monkeypatch.setattr(ray_backend, "_BELIEVED_S", 0.0)
    monkeypatch.setattr(ray_backend, "why_none", lambda *names: "gone")
    said: list[list[Any] | Exception] = [[Status("r0", None, CARD)], TimeoutError(), TimeoutError(), []]

    def control(method: str) -> list[Any]:
        answer = said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    requests, handle = AsyncMock(), Handle(control=control)
    asked = RayBackend(requests, handle, handle)  # type: ignore[arg-type]
    assert [await asked.card() for _ in range(3)] == [CARD] * 3
    requests.learn.assert_awaited_once()  # an address of the last statuses may be another program's by now
    with pytest.raises(NotReady, match="gone"):
        await asked.card()


async def test_requests_do_not_wait_for_a_replica_that_hangs(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_backend, "time", SimpleNamespace(monotonic=clock))
    handle = Handle(control=lambda method: [Status("r0", None, CARD)])
    asked = backend(handle)
    assert await asked.card() == CARD
    hangs = asyncio.Event()
    monkeypatch.setattr(
        asked._asked, "broadcast", lambda method: SimpleNamespace(results_async=lambda **_: hangs.wait())
    )
    for seconds in (1.0, 3.0, 1.0):  # the answer is old, the call takes all its time, then a link is tried
        clock.now += seconds
        async with asyncio.timeout(5):
            assert await asked.card() == CARD


async def test_the_time_limit_counts_from_the_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """A continued request has no more time than its first attempt had."""
    monkeypatch.setattr(wire, "_GRACE_S", 0.0)
    begun = structs.replace(work(60.0), arrived=Arrival.ago(61.0), resume=Resume((1,), 1))
    with pytest.raises(DeadlineExceeded, match="no replica continued in time"):
        await anext(backend(Handle(None)).stream(begun))


async def test_it_says_what_the_last_replica_ended_of(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [[], [Status("r1", None, CARD)], []]
    failed = Failure(EngineFailed("the engine stopped: ValueError: bad"))
    asked = backend(Handle(failed, failed, control=lambda method: answers.pop(0)))
    monkeypatch.setattr(ray_backend, "why_none", lambda app, deployment: "none")
    assert await anext(asked.stream(work())) == failed
    with pytest.raises(NotReady, match="none; before, the engine stopped: ValueError: bad"):
        await asked.statuses()
    assert await asked.statuses()
    with pytest.raises(NotReady, match=r"none$"):
        await asked.statuses()


async def test_metrics_come_from_all_processes() -> None:
    here, there, replica = (Snapshot(name, 0, ()) for name in ("here", "there", "r0"))
    asked = backend(Handle(control=lambda method: [replica]), Handle(control=lambda method: [here, there]))
    assert await asked.snapshots(here) == ([here, there], [replica])

    alone = backend(Handle(), Handle())
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

    asked = backend(Handle(control=control), Handle(control=lambda method: [here]))
    assert [(await asked.snapshots(here))[1] for _ in range(4)] == [[], [replica], [replica], []]


NEW = Weights(2, "step-7", "m")


async def test_all_replicas_are_given_weights_and_lost_ones_are_left_out() -> None:
    """The card is asked for again then."""
    taken = Exchanged("r1", NEW, 0.5)
    said: dict[str, list[Any]] = {
        "status": [Status("r1", None, CARD)],
        "check_weights": [taken],
        "exchange": [ActorDiedError(), taken],
    }
    handle = Handle(control=lambda method: said[method])
    asked = backend(handle)
    await asked.card()
    assert await asked.check_weights(NEW) == await asked.exchange(NEW) == [taken]
    await asked.card()
    assert handle.told == [("status",), ("check_weights", NEW), ("exchange", NEW), ("status",)]


async def test_all_ingresses_are_told_and_one_that_hangs_is_not_waited_for() -> None:
    def hang(method: str) -> list[Any]:
        raise TimeoutError

    ingress = Handle(control=lambda method: [None, None])
    await backend(Handle(), ingress).announce(NEW)
    assert ingress.told == [("learn_weights", NEW)]
    await backend(Handle(), Handle(control=hang)).announce(NEW)
    with pytest.raises(ExchangeFailed, match="has not answered within 3600 s"):
        await backend(Handle(control=hang)).exchange(NEW)


async def test_the_card_is_that_of_replicas_with_the_newest_weights() -> None:
    """Those of another deployment, which an update brings, count for themselves."""
    cards = [
        replace(CARD, weights=Weights(*one)) for one in ((1, "a", "m"), (2, "b", "m"), (2, "b", "m"), (0, "n", "n"))
    ]
    card = await backend(Handle(control=lambda method: [Status("r", None, one) for one in cards])).card()
    assert (card.weights, card.places, card.behind) == (Weights(2, "b", "m"), 3, 1)
