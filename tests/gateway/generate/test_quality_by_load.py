"""Presets by load over HTTP: the plan of the moment a request comes, in answers, models and metrics."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.api.models import Models
from service.errors import ReplicaLost
from service.messages.replica_status import ModelCard
from service.messages.wire import Chunk, Ending, Failure, ReplicaRequest
from service.quality.presets import Presets
from service.quality.schema import Band
from tests.gateway.doubles import CARD, STATS, Scripted
from tests.gateway.generate.helpers import GENERATE, body
from tests.gateway.helpers import assert_shape, eventually, over, page

ALONE, BUSY = {"threshold": 0.9}, {"threshold": 0.5}
#: left upwards with the sixth request, downwards with the third
BANDS = (Band(mode="dynamic", knobs=ALONE, up_to=4), Band(mode="dynamic", knobs=BUSY))
BY_LOAD = replace(CARD, quality=Presets({"fast": BANDS, "lossless": (Band(mode="static"),)}))
ENDING = Ending("stop", 1, 1, STATS)
REQUEST = body(mode=None, quality="fast")


class HeldReplica(Scripted):
    """Answers a request when it is released. `lost`: the first attempt is then lost with its replica."""

    def __init__(self, serves: ModelCard = BY_LOAD, lost: bool = False) -> None:
        super().__init__(serves=serves)
        self.gates: list[asyncio.Event] = []
        self._lost = lost

    async def stream(self, request: ReplicaRequest) -> AsyncGenerator[Chunk | Ending | Failure]:
        self.requests.append(request)
        self.gates.append(gate := asyncio.Event())
        await gate.wait()
        if self._lost and len(self.requests) > 1 and request is self.requests[0]:
            raise ReplicaLost("killed", retry_after=1.0)
        yield ENDING

    @property
    def thresholds(self) -> list[float | None]:
        """The knob of each request, None of one without it."""
        return [getattr(request.mode, "threshold", None) for request in self.requests]


class ClientGroup:
    def __init__(self, http: httpx.AsyncClient, backend: HeldReplica) -> None:
        self.http, self.backend = http, backend
        self.answers: list[asyncio.Task[httpx.Response]] = []

    async def come(self, count: int = 1, path: str = GENERATE, request: Any = REQUEST) -> None:
        for _ in range(count):
            before = len(self.backend.requests)
            self.answers.append(asyncio.create_task(self.http.post(path, json=request)))
            await eventually(lambda before=before: len(self.backend.requests) > before)  # type: ignore[misc]

    async def leave(self, count: int) -> list[httpx.Response]:
        """Those who have waited longest get their answers."""
        gates, self.backend.gates = self.backend.gates[:count], self.backend.gates[count:]
        for gate in gates:
            gate.set()
        done, self.answers = self.answers[:count], self.answers[count:]
        return list(await asyncio.gather(*done))


@asynccontextmanager
async def clients(backend: HeldReplica, **settings: Any) -> AsyncIterator[ClientGroup]:
    async with over(backend, **settings) as http:
        group = ClientGroup(http, backend)
        yield group
        await group.leave(len(group.answers))


async def test_the_plan_follows_the_load_up_and_down_with_hysteresis():
    async with clients(backend := HeldReplica()) as group:
        await group.come(7)
        assert backend.thresholds == [0.9] * 5 + [0.5] * 2
        await group.leave(4)
        await group.come(2)  # the fourth and the fifth: not yet under the bound
        assert backend.thresholds[7:] == [0.5] * 2
        await group.leave(3)
        await group.come()  # the third
        assert backend.thresholds[9:] == [0.9]


async def test_explicit_modes_and_a_single_band_ignore_the_load():
    async with clients(backend := HeldReplica()) as group:
        await group.come(6, request=body(mode="dynamic", threshold=0.25))
        await group.come(2, request=body(mode=None, quality="lossless"))
        assert [replica_request.mode.name for replica_request in backend.requests] == ["dynamic"] * 6 + ["static"] * 2
        assert set(backend.thresholds[:6]) == {0.25}


@pytest.mark.parametrize(("replicas", "ingresses", "alone"), [(1, 1, 5), (2, 1, 10), (1, 2, 3), (4, 2, 10)])
async def test_the_load_is_that_of_one_replica(replicas, ingresses, alone):
    """`alone`: requests that get the plan of a lone one."""
    many = replace(BY_LOAD, slots=64 * replicas, replica_slots=64)
    async with clients(backend := HeldReplica(many), api_server_count=ingresses) as group:
        await group.come(12)
        assert backend.thresholds == [0.9] * alone + [0.5] * (12 - alone)


async def test_another_attempt_keeps_the_plan_at_any_load():
    async with clients(backend := HeldReplica(lost=True), max_failovers=1) as group:
        await group.come(6)
        backend.gates.pop(0).set()
        await eventually(lambda: len(backend.requests) == 7)
        again = backend.requests[6]
        assert (again.attempt, again.mode) == (1, backend.requests[0].mode)
        assert (backend.thresholds[5], backend.thresholds[6]) == (0.5, 0.9)
        backend.gates.insert(0, backend.gates.pop())


async def test_models_have_the_bands_and_the_current_plan():
    async with clients(HeldReplica()) as group:
        assert await current_plan(group.http) == (ALONE, 1.0)
        await group.come(6)
        assert await current_plan(group.http) == (BUSY, 7 / 1.25)
        listed = (await group.http.get("/v1/models")).json()
        assert_shape(Models, listed)
        assert listed["data"][0]["quality"]["bands"]["fast"] == [
            {"mode": "dynamic", "knobs": ALONE, "up_to": 4.0}, {"mode": "dynamic", "knobs": BUSY, "up_to": None}
        ]  # fmt: skip


async def current_plan(http: httpx.AsyncClient) -> tuple[Any, float]:
    quality = (await http.get("/v1/models")).json()["data"][0]["quality"]
    return quality["presets"]["fast"]["knobs"], quality["load"]


async def test_metrics_count_answers_by_plan():
    async with clients(HeldReplica()) as group:
        await group.come(7)
        await group.come(request=body(mode="dynamic"))
        await group.leave(8)
        count = await page(group.http)
        name = "mrp_request_quality_total"
        assert count(name, quality="fast", plan="dynamic threshold=0.9") == 5
        assert count(name, quality="fast", plan="dynamic threshold=0.5") == 2
        assert count(name) == 7
