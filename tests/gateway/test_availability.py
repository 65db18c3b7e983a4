"""The card while replicas come and go: the last card stays valid, and waiting requests get new places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.errors import EngineFailed, NotReady, ScaledToZero
from service.gateway import availability as cards
from service.gateway.ingress import Ingress
from service.messages.replica_status import Status
from service.messages.wire import Ending
from service.settings.settings import Settings
from tests.gateway.doubles import CARD, STATS, Scripted
from tests.gateway.generate.helpers import GENERATE, ask, body, problem
from tests.gateway.helpers import client, eventually

ASLEEP = ScaledToZero("nobody asks", retry_after=1.0)


class Coming(Scripted):
    """Replicas with as many places as a test says. They may also be asleep, broken, or raise an error."""

    def __init__(self, says: int | Exception) -> None:
        super().__init__(Ending("length", 1, 4, STATS))
        self.says, self.looks = says, 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def statuses(self) -> list[Status]:
        self.looks += 1
        await self.answers.wait()
        if isinstance(self.says, Exception):
            raise self.says
        return [Status("r0", None, replace(CARD, slots=self.says))]


class Hall:
    """An ingress over such replicas, and a client."""

    def __init__(self, says: int | Exception, **settings: Any) -> None:
        self.backend = Coming(says)
        self.ingress = Ingress("i0", Settings(**settings), self.backend)
        self.http = client(self.ingress.app(answers_request_id=True))

    def asking(self, **fields: Any) -> asyncio.Task[httpx.Response]:
        return asyncio.ensure_future(self.http.post(GENERATE, json=body(max_new_tokens=4, **fields)))

    async def waiting(self) -> None:
        """Returns when a request waits for a place."""
        await eventually(lambda: self.ingress._admission.somebody_waits)

    async def falls_asleep(self) -> None:
        """After an answer, so that the card is known."""
        await ask(self.http, body(max_new_tokens=4))
        self.backend.says = ASLEEP
        await eventually(lambda: self.ingress._admission._slots._total == 0)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "POLL_S", 0.01)


@pytest.fixture
async def full() -> AsyncIterator[Hall]:
    """No place is free, and a request waits for one."""
    hall = Hall(0)
    async with hall.http:
        yield hall


@pytest.fixture
async def asleep() -> AsyncIterator[Hall]:
    hall = Hall(1)
    async with hall.http:
        await hall.falls_asleep()
        yield hall


async def test_a_new_replica_gets_what_waits_without_another_request(full: Hall) -> None:
    task = full.asking()
    await full.waiting()
    full.backend.says = 1
    assert (await task).status_code == 200


async def test_who_waits_is_not_forgotten_over_a_controller_that_is_away(full: Hall) -> None:
    task = full.asking()
    await full.waiting()
    full.backend.says = ConnectionError("no controller")
    await asyncio.sleep(0.05)
    full.backend.says = 1
    assert (await task).status_code == 200


async def test_requests_do_not_wait_for_replicas_that_hang() -> None:
    """The last card holds until they answer. Then the new one does."""
    hall = Hall(1)
    async with hall.http:
        await ask(hall.http, body(max_new_tokens=4))
        hall.backend.answers.clear()
        looks = hall.backend.looks
        await eventually(lambda: hall.backend.looks > looks)
        async with asyncio.timeout(5):
            await ask(hall.http, body(max_new_tokens=4))
        hall.backend.says = NotReady("gone", retry_after=1.0)
        hall.backend.answers.set()
        await eventually(lambda: hall.ingress._availability._failed)
        assert problem(await hall.asking(), 503)["message"] == "gone"
        hall.backend.says = 1
        await ask(hall.http, body(max_new_tokens=4))


async def test_a_service_that_is_back_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request asks the replicas itself, if the last look found none."""
    monkeypatch.setattr(cards, "POLL_S", 1000.0)
    hall = Hall(NotReady("gone", retry_after=1.0))
    async with hall.http:
        assert (await hall.asking()).status_code == 503
        hall.backend.says = 1
        await asyncio.sleep(0.2)  # the answer of a look counts for a tenth of a second
        await ask(hall.http, body(max_new_tokens=4))
        hall.backend.says = NotReady("gone again", retry_after=1.0)
        with pytest.raises(NotReady):
            await hall.ingress._availability.poll()
        hall.backend.says = 1
        await asyncio.sleep(0.2)
        await ask(hall.http, body(max_new_tokens=4))


class TestScaledToZero:
    async def test_a_request_wakes_it_and_waits(self, asleep: Hall) -> None:
        assert asleep.ingress.replicas_wanted == 0
        task = asleep.asking()
        await asleep.waiting()
        assert asleep.ingress.replicas_wanted > 0
        asleep.backend.says = 1
        assert (await task).status_code == 200

    async def test_it_waits_no_longer_than_it_said(self, asleep: Hall) -> None:
        assert problem(await asleep.asking(timeout_s=0.05), 504)["code"] == "deadline_exceeded"

    async def test_a_bad_request_is_refused_without_waking_it(self, asleep: Hall) -> None:
        problem(await asleep.asking(temperature=-1), 422)
        assert (await asleep.http.get("/v1/models")).json()["data"][0]["id"] == CARD.name
        assert asleep.ingress.replicas_wanted == 0

    async def test_it_is_healthy_and_measured(self, asleep: Hall) -> None:
        response = await asleep.http.get("/health")
        assert (response.status_code, response.json()) == (200, {"status": "ok", "replicas_ready": 0})
        page = (await asleep.http.get("/metrics")).text
        assert 'mrp_replicas_wanted{replica="i0"} 0.0' in page

    async def test_a_replica_that_does_not_start_is_told_of_at_once(self, asleep: Hall) -> None:
        task = asleep.asking()
        await asleep.waiting()
        asleep.backend.says = NotReady("given up: CheckpointError", retry_after=5.0)
        detail = problem(await task, 503)
        assert detail["message"] == "given up: CheckpointError"
        problem(await asleep.asking(), 503)
        assert (await asleep.http.get("/health")).status_code == 503

    async def test_a_queue_has_its_limit_there_too(self, asleep: Hall) -> None:
        hall = Hall(1, max_waiting=1)
        await hall.falls_asleep()
        task = hall.asking()
        await hall.waiting()
        problem(await hall.asking(), 429)
        hall.backend.says = 1
        assert (await task).status_code == 200


class TestNeverAwake:
    """An ingress that has started while the service slept."""

    async def test_what_is_served_is_waited_for(self) -> None:
        hall = Hall(ASLEEP)
        async with hall.http:
            task = hall.asking()
            await eventually(lambda: hall.ingress.replicas_wanted > 0)
            hall.backend.says = 1
            assert (await task).status_code == 200
        assert hall.ingress._availability.has_waiting is False

    async def test_who_asks_for_health_teaches_it(self) -> None:
        hall = Hall(1)
        async with hall.http:
            assert (await hall.http.get("/health")).json()["replicas_ready"] == 1
            hall.backend.says = ASLEEP
            assert (await hall.http.get("/v1/models")).status_code == 200

    async def test_but_not_for_ever(self) -> None:
        hall = Hall(ASLEEP, request_timeout_s=0.05)
        async with hall.http:
            assert "no replica started within 0.05 s" in problem(await hall.asking(), 503)["message"]

    async def test_nor_if_a_look_takes_no_notice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Drops the timeout, as `asyncio.wait_for` of Python 3.11 does if it comes together with an answer."""
        hall, first = Hall(ASLEEP, request_timeout_s=0.05), iter([10])

        async def look() -> list[Status]:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(next(first, 0))
            raise ASLEEP

        async with hall.http:
            hall.ingress._availability.statuses = look  # type: ignore[assignment]
            monkeypatch.setattr(cards, "POLL_S", 0.01)
            task = asyncio.ensure_future(hall.ingress._availability._first())
            with pytest.raises(NotReady, match="no replica started within"):
                await asyncio.wait_for(task, 5)

    async def test_what_goes_wrong_is_told(self) -> None:
        hall = Hall(ASLEEP)
        async with hall.http:
            task = hall.asking()
            await eventually(lambda: hall.ingress.replicas_wanted > 0)
            hall.backend.says = EngineFailed("broken")
            problem(await task, 500)
