"""The card while replicas come and go: the last card stays valid, and waiting requests get slots of new replicas."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from service.admission.controller import AdmissionController
from service.errors import ControllerAway, EngineFailed, NotReady, ScaledToZero
from service.gateway.availability import Availability
from service.gateway.deps import IngressDeps
from service.gateway.ingress import Ingress
from service.messages.replica_status import PauseState, Status
from service.messages.wire import Ending, Weights
from service.settings.settings import Settings
from tests.gateway.doubles import CARD, STATS, Scripted
from tests.gateway.generate.helpers import GENERATE, ask, body, problem
from tests.gateway.helpers import client, eventually, page

ZERO_REPLICAS = ScaledToZero("no replica runs", retry_after=1.0)
REQUEST = body(max_new_tokens=4)


class Service(Scripted):
    """An ingress over replicas, and a client. `slots`: of the replicas, or the error of their status."""

    def __init__(self, slots: int | Exception, poll_s: float = 0.01, **settings: Any) -> None:
        super().__init__(Ending("length", 1, 4, STATS))
        self.slots, self.polls = slots, 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.ingress = Ingress("i0", Settings(**settings), self, IngressDeps(poll_s=poll_s))
        self.http = client(self.ingress.app(answers_request_id=True))

    async def statuses(self) -> list[Status]:
        self.polls += 1
        await self.answers.wait()
        if isinstance(self.slots, Exception):
            raise self.slots
        return [Status("r0", None, replace(CARD, slots=self.slots))]

    def request(self, **fields: Any) -> asyncio.Task[httpx.Response]:
        return asyncio.ensure_future(self.http.post(GENERATE, json=REQUEST | fields))

    async def queued_request(self, **fields: Any) -> asyncio.Task[httpx.Response]:
        """A request, when it waits for a slot."""
        task = self.request(**fields)
        await eventually(lambda: self.ingress.pipeline.in_flight > 0)
        return task

    async def scale_to_zero(self) -> None:
        """After an answer, so that the card is known."""
        await ask(self.http, REQUEST)
        await self.becomes(ZERO_REPLICAS)

    async def becomes(self, slots: int | Exception) -> None:
        """The ingress has the answer to a poll that began since."""
        self.slots, polls = slots, self.polls
        await eventually(lambda: self.polls > polls + 1)


@pytest.fixture
async def zero() -> AsyncIterator[Service]:
    service = Service(1)
    async with service.http:
        await service.scale_to_zero()
        yield service


@pytest.mark.parametrize("away", [ConnectionError("no controller"), ControllerAway("no controller", retry_after=5.0)])
async def test_a_queued_request_gets_the_slot_of_a_new_replica(away):
    """Without another request, even if the controller was away meanwhile."""
    service = Service(0)
    async with service.http:
        task = await service.queued_request()
        await service.becomes(away)
        service.slots = 1
        assert (await task).status_code == 200


async def test_requests_do_not_wait_for_replicas_that_hang():
    """The last card holds until they answer. Then the new one does."""
    service = Service(1)
    async with service.http:
        await ask(service.http, REQUEST)
        service.answers.clear()
        polls = service.polls
        await eventually(lambda: service.polls > polls)
        async with asyncio.timeout(120):
            await ask(service.http, REQUEST)
        service.answers.set()
        await service.becomes(NotReady("gone", retry_after=1.0))
        assert problem(await service.request(), 503)["message"] == "gone"
        service.slots = 1
        await ask(service.http, REQUEST)


async def test_a_service_that_is_back_refuses_nothing():
    """A request asks the replicas itself, if the last poll found none."""
    service = Service(NotReady("gone", retry_after=1.0), poll_s=1000.0)
    async with service.http:
        assert (await service.request()).status_code == 503
        service.slots = 1
        await asyncio.sleep(0.2)  # the answer of a poll counts for a tenth of a second
        await ask(service.http, REQUEST)
        service.slots = NotReady("gone again", retry_after=1.0)
        assert (await service.http.get("/health")).status_code == 503
        service.slots = 1
        await asyncio.sleep(0.2)
        await ask(service.http, REQUEST)


def status(name: str = "r0", version: int = 0, **fields: Any) -> Status:
    """A replica's status, with weights of the base `demo`."""
    card = replace(CARD, weights=Weights(version, f"step-{version}", "demo"))
    return Status(name, **{"failure": None, "card": card, **fields})


SLEEPS, AWAKE = PauseState(1, sleep_level=1), PauseState(2)


@pytest.mark.parametrize(
    ("statuses", "ready"),
    [
        ([status(version=3)], 1),
        ([status(version=4)], 1),  # newer than this ingress knows
        ([status(card=replace(CARD, weights=Weights(0, base="another")))], 1),  # an update of `model`
        ([status(version=3), status("r1"), status("r2", version=2)], 1),
        ([status(version=3, pause=SLEEPS), status("r1", version=3, pause=SLEEPS)], 2),  # the service sleeps
        ([status(version=3, pause=SLEEPS), status("r1", version=3, pause=AWAKE)], 1),
        ([status()], "r0: it has weights of version 0, allowed are 3 and later"),
        ([status(version=3, failure="broken")], "r0: broken"),
        ([status(version=3, reachable=False)], "r0: it does not respond"),
        ([status(version=3, failure="broken"), status("r1")], "r0: broken; r1: it has weights of version 0"),
        (
            [status(version=3, pause=SLEEPS), status("r1", pause=AWAKE)],
            "r0: it is paused or asleep, and the service is not; r1: it has weights",
        ),
    ],
)
async def test_the_health_counts_the_replicas_that_can_answer(statuses: list[Status], ready: int | str) -> None:
    service = Service(1, model="demo")
    service.statuses = AsyncMock(return_value=statuses)  # type: ignore[method-assign]
    service.ingress.require_weights(Weights(3, "step-3", "demo"))
    async with service.http:
        response = await service.http.get("/health")
        metrics = await page(service.http)
    if isinstance(ready, int):
        assert (response.status_code, response.json()) == (200, {"status": "ok", "replicas_ready": ready})
    else:
        assert problem(response, 503)["code"] == "not_ready"
        assert f"no replica can generate: {ready}" in response.json()["error"]["message"]
    assert metrics("mrp_replicas_ready") == (ready if isinstance(ready, int) else 0)


class TestScaledToZero:
    async def test_a_request_wakes_the_service_and_waits(self, zero):
        assert zero.ingress.replicas_wanted == 0
        task = await zero.queued_request()
        assert zero.ingress.replicas_wanted > 0
        zero.slots = 1
        assert (await task).status_code == 200

    async def test_a_request_waits_no_longer_than_its_time_limit(self, zero):
        assert problem(await zero.request(timeout_s=0.05), 504)["code"] == "deadline_exceeded"

    async def test_a_bad_request_and_operators_do_not_wake_it(self, zero):
        problem(await zero.request(temperature=-1), 422)
        assert (await zero.http.get("/v1/models")).json()["data"][0]["id"] == CARD.name
        response = await zero.http.get("/health")
        assert (response.status_code, response.json()) == (200, {"status": "ok", "replicas_ready": 0})
        assert 'mrp_replicas_wanted{replica="i0"} 0.0' in (await zero.http.get("/metrics")).text
        assert zero.ingress.replicas_wanted == 0

    async def test_a_replica_that_does_not_start_ends_the_queued_requests(self, zero):
        task = await zero.queued_request()
        zero.slots = NotReady("given up: CheckpointError", retry_after=5.0)
        assert problem(await task, 503)["message"] == "given up: CheckpointError"
        problem(await zero.request(), 503)
        assert (await zero.http.get("/health")).status_code == 503

    async def test_the_queue_has_its_limit(self):
        service = Service(1, max_waiting=1)
        await service.scale_to_zero()
        task = await service.queued_request()
        problem(await service.request(), 429)
        service.slots = 1
        assert (await task).status_code == 200


class TestStartedAtZero:
    """An ingress that has started while there was no replica, and so does not know the card."""

    async def test_a_request_waits_for_the_first_card(self):
        service = Service(ZERO_REPLICAS)
        async with service.http:
            task = service.request()
            await eventually(lambda: service.ingress.replicas_wanted > 0)
            service.slots = 1
            assert (await task).status_code == 200
        assert service.ingress.replicas_wanted == 0

    async def test_the_wait_has_a_limit(self):
        service = Service(ZERO_REPLICAS, request_timeout_s=0.05)
        async with service.http:
            assert "no replica started within 0.05 s" in problem(await service.request(), 503)["message"]

    async def test_the_limit_holds_if_a_poll_drops_the_timeout(self):
        """`asyncio.wait_for` of Python 3.11 drops it if it comes together with an answer."""
        cards, pauses = Availability(Scripted(), AdmissionController(Settings()), 0.05, poll_s=0.01), iter([10])

        async def statuses() -> list[Status]:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(next(pauses, 0))
            raise ZERO_REPLICAS

        cards.statuses = statuses  # type: ignore[assignment]
        with pytest.raises(NotReady, match="no replica started within"):
            await asyncio.wait_for(cards.card(), 5)

    async def test_an_error_ends_the_wait(self):
        service = Service(ZERO_REPLICAS)
        async with service.http:
            task = service.request()
            await eventually(lambda: service.ingress.replicas_wanted > 0)
            service.slots = EngineFailed("broken")
            problem(await task, 500)
