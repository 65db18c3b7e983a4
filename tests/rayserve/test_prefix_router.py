"""The router as Serve calls it, over simulated replicas: concurrent calls, full and dead replicas, reports."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve._private.request_router.common import PendingRequest
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.config import RequestRouterConfig

from service.rayserve.prefix_router import PrefixRouter
from service.rayserve.report import reporting_to
from service.wire import Work
from tests.routing.test_keys import TEXT, chat, work

DEPLOYMENT = DeploymentID("Generator", "mrp")


class Replica:
    """A simulated replica: the number of its requests, and the number that it takes."""

    def __init__(self, name: str, places: int = 80) -> None:
        self.replica_id = ReplicaID(name, DEPLOYMENT)
        self.actor_id, self.node_id, self.availability_zone = name, "n", None
        self.multiplexed_model_ids: set[str] = set()
        self.max_ongoing_requests, self.running = places, 0

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return self.running


class Serve:
    """Does what Serve does with a router: gets a replica, sends the request, and reports the outcome."""

    def __init__(self, router: PrefixRouter, replicas: list[Replica]) -> None:
        self.router, self.routed = router, Counter[str]()
        self.update(replicas)

    def update(self, replicas: list[Replica]) -> None:
        self.replicas = {replica.replica_id: replica for replica in replicas}
        self.router.update_replicas(replicas)

    async def send(self, work: Work, client: str = "one request of a client") -> Callable[[], str]:
        """Routes a request. The returned function ends it and returns its replica."""
        pending = PendingRequest([work], {}, RequestMetadata(client, client))
        with reporting_to(lambda how: self.routed.update([how])):
            chosen = await self.router._choose_replica_for_request(pending)
            chosen.running += 1
            name = chosen.replica_id
            self.router.on_send_request(name)
            self.router.on_new_queue_len_info(name, chosen.running)
            self.router.on_request_routed(pending, name, None)

        def end() -> str:
            chosen.running -= 1
            self.router.decrement_queue_len_cache(name)
            return str(name.unique_id)

        return end


@asynccontextmanager
async def serving(*replicas: Replica, slack: float = 1, kind: type = PrefixRouter) -> AsyncIterator[Serve]:
    """Replicas and a router, made as Serve makes it: from the class as it is pickled."""
    named: dict[str, Any] = {"request_router_class": f"{kind.__module__}.{kind.__name__}"}
    router: Any = RequestRouterConfig(**named).get_request_router_class()
    made = router(
        deployment_id=DEPLOYMENT, handle_source=DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True
    )
    made.initialize_state(slack=slack)
    async with asyncio.timeout(20):
        serve = Serve(made, list(replicas))
        while None in map(made.replica_queue_len_cache.get, serve.replicas):  # Serve asks new replicas for them
            await asyncio.sleep(0)
        yield serve


def replicas(count: int, places: int = 80) -> list[Replica]:
    return [Replica(f"r{n}", places) for n in range(count)]


def turn(session: str, number: int, **more: Any) -> Work:
    said = (f"{session} says {n}, with some more words" for n in range(2 * number + 1))
    return work(messages=chat(*said), **more)


async def test_turns_stick_while_others_come_and_go() -> None:
    async with serving(*replicas(4), slack=8) as serve:
        homes: dict[str, set[str]] = {}
        for number in range(5):
            sessions = [f"session {n}" for n in range(8)]
            ends = await asyncio.gather(*(serve.send(turn(name, number)) for name in sessions))
            for name, end in zip(sessions, ends, strict=True):
                homes.setdefault(name, set()).add(end())
        assert all(len(where) == 1 for where in homes.values()), homes
        assert serve.routed == {"load": 8, "prefix": 32}


async def test_calls_of_one_client_request_all_find_a_replica() -> None:
    """They share the client's request, by which Serve's unordered routers identify a call."""
    async with serving(*replicas(3)) as serve:
        ends = await asyncio.gather(*(serve.send(work(text=TEXT), "the same") for _ in range(30)))
        taken = Counter(end() for end in ends)
        assert sum(taken.values()) == 30
        assert max(taken.values()) <= 1.25 * 10 + 1
        assert not serve.router._pending_requests_to_fulfill


async def test_a_request_gets_what_was_chosen_for_it_and_not_for_another() -> None:
    async with serving(*replicas(4), slack=50) as serve:
        first = {name: (await serve.send(turn(name, 0)))() for name in map(str, range(16))}
        for _ in range(5):
            ends = await asyncio.gather(*(serve.send(turn(name, 1)) for name in first))
            assert [end() for end in ends] == list(first.values())


async def test_full_replicas_make_requests_wait_for_the_first_place() -> None:
    async with serving(*replicas(2, places=1)) as serve:
        held = [await serve.send(work(text=TEXT)) for _ in range(2)]
        waiting = asyncio.create_task(serve.send(work(text=TEXT)))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        name = held[1]()
        assert (await waiting)() == name


async def test_a_client_that_leaves_while_it_waits_is_forgotten() -> None:
    async with serving(*replicas(1, places=1)) as serve:
        end = await serve.send(work(text=TEXT))
        waiting = asyncio.create_task(serve.send(work(text=TEXT)))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        end()
        (await serve.send(work(text=TEXT)))()
        assert not serve.router._pending_requests_to_fulfill


async def test_a_replica_that_died_or_was_removed_gets_nothing() -> None:
    async with serving(*replicas(3)) as serve:
        first = (await serve.send(turn("a", 0)))()
        serve.router.on_replica_actor_died(ReplicaID(first, DEPLOYMENT))
        second = (await serve.send(turn("a", 1)))()
        assert second != first
        serve.update([Replica("new"), *(replica for replica in serve.replicas.values() if replica.actor_id == first)])
        third = (await serve.send(turn("a", 1)))()
        assert third == first, "it is back and has the beginning, a third of the prompt"
        assert serve.routed["prefix"] == 1
        serve.update([Replica("new")])
        assert (await serve.send(turn("a", 3)))() == "new"


async def test_a_further_attempt_insists_on_no_replica() -> None:
    async with serving(*replicas(8)) as serve:
        first = (await serve.send(turn("a", 0)))()
        again = {(await serve.send(replace(turn("a", 0), attempt=1)))() for _ in range(40)}
        assert again - {first}
        assert serve.routed == {"load": 1}


async def test_loads_are_remembered_longer_than_serve_does() -> None:
    async with serving(*replicas(2)) as serve:
        ends = [await serve.send(work(text=TEXT)) for _ in range(6)]
        serve.router._replica_queue_len_cache._cache.clear()
        assert sorted(serve.router._loads.now().values()) == [3, 3]
        for end in ends:
            end()
        assert sorted(serve.router._loads.now().values()) == [0, 0]


async def test_a_call_that_is_no_work_goes_by_load() -> None:
    async with serving(*replicas(2)) as serve:
        assert (await serve.send("no work"))() in {"r0", "r1"}  # type: ignore[arg-type]
        assert serve.routed == {}


async def decisions_us(kind: type, count: int, prompts: list[Work]) -> float:
    """Microseconds to route a prompt to one of so many replicas, whoever then takes it."""
    async with serving(*replicas(count), slack=5, kind=kind) as serve:
        began = time.thread_time()
        for each in prompts:
            (await serve.send(each))()
        return 1e6 * (time.thread_time() - began) / len(prompts)


@pytest.mark.parametrize("count", [2, 64])
async def test_a_decision_costs_little(count: int) -> None:
    """Sending is played by both in the same way. `-s` shows the numbers."""
    prompts = [work(text=f"{n:06}" + "a" * 10_000) for n in range(50)] * 2
    rounds = [
        [await decisions_us(kind, count, prompts) for kind in (PowerOfTwoChoicesRequestRouter, PrefixRouter)]
        for _ in range(5)
    ]
    default, ours = (min(times) for times in zip(*rounds, strict=True))  # machines are shared
    print(f"{count} replicas, prompts of 10,000 characters: default {default:.0f} us, by prefix {ours:.0f} us")  # noqa: T201
    assert ours < default + 2000
