"""The demand at one moment. test_scaling.py tests the demand over time."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from service.admission.charge import TokenCharge
from service.admission.controller import AdmissionController
from service.admission.keys import ApiKey
from service.admission.throughput import MIN_WANTED, ReplicaDemand
from service.decode.modes import Static
from service.engine.request import SamplingParams
from service.errors import ConstraintFailed, DeadlineExceeded, PromptTooLong, ReplicaLost
from service.ipc.data import Arrival
from service.messages.wire import Chunk, ReplicaRequest
from service.settings.settings import Settings
from tests.clock import Clock
from tests.gateway.doubles import CARD, STATS


def load(in_flight: int = 0, placed: int = 0, waiting: float = 0.0, rate: float | None = 2.0) -> dict[str, Any]:
    return {"in_flight": in_flight, "running": placed, "waiting_blocks": waiting, "rate_per_slot": rate}


@pytest.fixture
def demand(clock: Clock) -> ReplicaDemand:
    """Replicas of ten slots, 20 blocks a second together at full load."""
    return ReplicaDemand(10, clock)


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        (load(), 0),
        (load(rate=None), 0),
        (load(1), MIN_WANTED),  # any request needs a part of a replica
        (load(10, 10, rate=None), 1.25),  # without a rate by the slots taken
        (load(90, 4, 1000, rate=None), 0.5),
        (load(9, 0, 600), 3.0),  # a queue
        (load(25, 25), 2.5),  # running requests keep their replicas
        (load(11, 10, 16), 1.25),  # full replicas with a queue, however short it is, need another replica
        (load(36, 30, 60), 3.75),
    ],
)
def test_requests_are_demand(demand: ReplicaDemand, now: dict[str, Any], wanted: float) -> None:
    assert demand.wanted(1.0, **now) == pytest.approx(wanted)


def test_arrivals_are_demand_and_decay(demand: ReplicaDemand, clock: Clock) -> None:
    for _ in range(300):
        clock.now += 1
        demand.arrived(16)  # 0.8 of a replica
    assert demand.wanted(1.0, **load()) == pytest.approx(1.0, rel=0.03)
    assert demand.wanted(0.5, **load()) == pytest.approx(0.5, rel=0.03)  # half of it will be decoded
    clock.now += 30
    assert demand.wanted(1.0, **load()) == pytest.approx(0.37, rel=0.03)
    clock.now += 120
    assert demand.wanted(1.0, **load()) == 0


def test_the_slots_of_a_replica_come_from_its_card() -> None:
    """With `max_num_seqs: auto` a replica may have fewer slots than the settings allow."""
    admission = AdmissionController(Settings(), lambda: 0.0)
    before = admission.demand.slots
    assert before == Settings().slots
    admission.serves(replace(CARD, slots=24, replica_slots=8))  # of three replicas
    assert admission.demand.slots == 8 < before


class TestRefusedRequests:
    """A request that no replica can decode is no demand."""

    async def answer(
        self, admission: AdmissionController, replica_request: ReplicaRequest, error: Exception | None = None
    ) -> None:
        admission.admit(ApiKey("a"), [replica_request])
        async with admission.slot(replica_request, TokenCharge(lambda _: None)):
            if error is not None:
                raise error

    @pytest.mark.parametrize("fields", [{}, {"token_ids": (1,) * 200}])
    def test_at_the_ingress(self, clock: Clock, fields: dict[str, Any]) -> None:
        admission = AdmissionController(Settings(), clock)
        admission.serves(CARD)
        giant = structs.replace(request(clock), max_new_tokens=2**31 - 1 if not fields else 57, **fields)
        with pytest.raises(PromptTooLong, match="max_new_tokens") as refusal:
            asyncio.run(self.answer(admission, giant))
        assert refusal.value.param == "max_new_tokens"
        assert admission.replicas_wanted == 0

    def test_at_the_replica(self, clock: Clock) -> None:
        """Only it knows how long the prompt is."""
        admission = AdmissionController(Settings(), clock)
        admission.serves(replace(CARD, slots=1, replica_slots=1))
        asyncio.run(self.answer(admission, request(clock)))
        before = admission.demand._decayed()
        with pytest.raises(PromptTooLong):
            asyncio.run(self.answer(admission, request(clock), PromptTooLong("too long")))
        assert before == pytest.approx(admission.demand._decayed()) == 16


def request(clock: Clock) -> ReplicaRequest:
    """A text to be continued by 64 tokens."""
    return ReplicaRequest("1", Static(), SamplingParams(), 64, 600.0, Arrival(clock.now), text="Hello")


class TestRequestWithManyLongAnswers:
    """The rate is what was decoded. One valid request with `n` must not make it look slow, nor want replicas."""

    INTERVAL = 16

    async def decode(
        self, admission: AdmissionController, replica_request: ReplicaRequest, clock: Clock, error: Exception
    ) -> None:
        """All slots for a minute: two blocks a second each, reported 16 at a time, and then the request fails."""
        charge, chunk = TokenCharge(lambda _: None), Chunk(15, "", (1,) * 16 * CARD.block_size, STATS)
        async with AsyncExitStack() as stack:
            answers = [
                await stack.enter_async_context(admission.slot(replica_request, charge)) for _ in range(CARD.slots)
            ]
            for _ in range(8):
                clock.now += 8
                for usage in answers:
                    usage.add(chunk)
                    assert admission.blocks_per_second == pytest.approx(2 * CARD.slots)
                assert admission.replicas_wanted < 10
            clock.now += 7
            assert admission.blocks_per_second == pytest.approx(2 * CARD.slots)
            assert [usage.decoded for usage in answers] == [8 * 16] * CARD.slots
            raise error

    @pytest.mark.parametrize("error", [DeadlineExceeded("late"), ConstraintFailed("no"), ReplicaLost("gone")])
    def test_the_rate_stays(self, clock: Clock, error: Exception) -> None:
        admission = AdmissionController(Settings(), clock)
        admission.serves(CARD)
        replica_request = structs.replace(request(clock), max_new_tokens=240, stream_interval=self.INTERVAL)
        with pytest.raises(type(error)):
            asyncio.run(self.decode(admission, replica_request, clock, error))
        assert admission.blocks_per_second == pytest.approx(2 * CARD.slots)

    def test_the_demand_has_a_bound(self, clock: Clock) -> None:
        admission = AdmissionController(Settings(num_replicas=1, max_replicas=8), clock)
        admission.serves(CARD)
        for number in range(10_000):
            admission.demand.arrived(number)
        admission.throughput.occupied(64, 64)
        start = admission.throughput.moment()
        clock.now += 10
        admission.throughput.decoded_since(start, 1e-3)
        assert admission.replicas_wanted == 4 * 8
