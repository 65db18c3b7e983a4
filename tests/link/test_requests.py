"""Requests over links: answers, errors, cancellation, loss, draining, waiting. Real sockets, doubles of replicas."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec import structs

from service.engine.request import Stats
from service.errors import DeadlineExceeded, EngineFailed, InvalidRequest, MrpServeError, ReplicaLost
from service.gateway.backend import serving
from service.ipc.data import Arrival
from service.link import client as link_client
from service.link import requests as linked
from service.link import server as link_server
from service.messages import wire
from service.messages.replica_status import Address, PauseState, Status
from service.messages.wire import Answer, Chunk, Encoded, Ending, Failure, Resume, Weights
from tests.gateway.helpers import eventually
from tests.link.doubles import CARD, Service, answer, replica_request

UNLINKED = "the ingress has no connection to it"


async def test_answers_blocks_and_counts_come_through(service: Service) -> None:
    ingress = await service.ingress()
    assert await ingress.complete(replica_request()) == answer("a")
    assert await ingress.encode(replica_request()) == Encoded((1,))
    items = [item async for item in ingress.stream(replica_request())]
    assert items == [*(Chunk(index, "a", (index,), Stats()) for index in range(3)), Ending("length", 1, 3, Stats())]
    assert service.servers["a"].calls == 0
    assert service.linked == 1


async def test_a_failure_is_an_answer_and_a_bug_shows_only_the_requests_id(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    ingress = await service.ingress()
    failed, bug = await ingress.complete(replica_request("fail")), await ingress.complete(replica_request("bug"))
    assert isinstance(failed, Failure)
    assert isinstance(failed.error, EngineFailed)
    assert isinstance(bug, Failure)
    assert type(bug.error) is MrpServeError
    assert "must not be shown" not in str(bug.error) + caplog.text
    items = [item async for item in ingress.stream(replica_request("bug"))]
    assert [type(item) for item in items] == [Chunk, Failure]


async def test_a_disconnect_cancels_the_call_in_the_replica(service: Service) -> None:
    ingress, replica = await service.ingress(), service.replicas["a"]
    call = asyncio.create_task(ingress.complete(replica_request("wait")))
    await eventually(lambda: replica.started == 1)
    call.cancel()
    await eventually(lambda: replica.cancelled == 1)
    async with aclosing(ingress.stream(replica_request("wait"))) as items:
        await anext(items)
    await eventually(lambda: replica.cancelled == 2)
    assert service.servers["a"].calls == 0


async def test_an_ingress_that_is_gone_has_no_calls(service: Service) -> None:
    ingress, replica = await service.ingress(), service.replicas["a"]
    call = asyncio.create_task(ingress.complete(replica_request("wait")))
    await eventually(lambda: replica.started == 1)
    ingress.links["a"].abort()
    with pytest.raises(ReplicaLost):
        await call
    await eventually(lambda: replica.cancelled == 1)


async def test_a_lost_replica_loses_its_calls_at_once_and_gets_no_more(service: Service) -> None:
    ingress = await service.ingress()
    first, streamed = (
        asyncio.create_task(ingress.complete(replica_request("wait"))),
        ingress.stream(replica_request("wait")),
    )
    assert isinstance(await anext(streamed), Chunk)
    await service.servers["a"].close()
    for lost in (first, anext(streamed)):
        with pytest.raises(ReplicaLost) as caught:
            await lost
        assert caught.value.retry_after
    waits = asyncio.create_task(ingress.complete(replica_request()))
    await asyncio.sleep(0)
    await service.add("a")  # as a replica of that name never does, an unreachable one that is back
    await ingress.update(service.statuses())
    assert await waits == answer("a")


async def test_a_replica_that_drains_finishes_its_calls_and_takes_no_more(service: Service) -> None:
    ingress, draining = await service.ingress(), service.replicas["a"]
    await service.add("b")
    running = [asyncio.create_task(ingress.complete(replica_request("wait"))) for _ in range(2)]
    await eventually(lambda: draining.started == 2)
    await ingress.update(service.statuses())
    closing = asyncio.create_task(service.servers["a"].close(60.0))
    await eventually(lambda: not ingress.links["a"].usable)
    assert {(await ingress.complete(replica_request())).text for _ in range(8)} == {"b"}  # type: ignore[union-attr]
    seen = await ingress.update(service.statuses())  # Serve may still count it
    assert [status.replica for status in seen] == ["b"]
    assert {(await ingress.complete(replica_request())).text for _ in range(8)} == {"b"}  # type: ignore[union-attr]
    draining.may_go_on.set()
    assert await asyncio.gather(*running) == [answer("a")] * 2
    await closing


async def test_a_call_that_crosses_the_notice_goes_to_another_replica(service: Service) -> None:
    ingress = await service.ingress()
    for name in "bcd":
        await service.add(name)
    await ingress.update(service.statuses())
    for name in "abc":
        service.servers[name].draining = True  # the ingress does not know yet
    answers = await asyncio.gather(*(ingress.complete(replica_request()) for _ in range(32)))
    assert all(isinstance(item, Answer) for item in answers)
    assert [service.replicas[name].started for name in "abc"] == [0, 0, 0]


async def test_a_drain_timeout_ends_the_calls(service: Service) -> None:
    ingress = await service.ingress()
    call = asyncio.create_task(ingress.complete(replica_request("wait")))
    await eventually(lambda: service.replicas["a"].started == 1)
    await service.servers["a"].close(0.01)
    with pytest.raises(ReplicaLost):
        await call


async def test_a_call_without_a_first_item_in_time_fails(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked, "patience_s", lambda request: 0.01)
    ingress, replica = await service.ingress(), service.replicas["a"]
    with pytest.raises(DeadlineExceeded, match=r"timeout_s is 0\.5"):
        await ingress.complete(replica_request("wait", 0.5))
    await eventually(lambda: replica.cancelled == 1)


async def test_only_the_first_item_has_a_limit(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    limited: list[str] = []
    monkeypatch.setattr(linked, "patience_s", lambda request: limited.append(request.request_id) or 60.0)
    ingress = await service.ingress()
    assert len([item async for item in ingress.stream(replica_request())]) == 4
    assert limited == ["id"]


async def test_a_replica_without_a_link_gets_no_requests_and_the_others_do(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    ingress = await service.ingress()
    unreachable = Status("b", None, CARD, Address("127.0.0.1", 1, "s"))
    seen = await ingress.update([*service.statuses(), unreachable])
    assert [(status.replica, status.failure) for status in seen] == [("a", None), ("b", UNLINKED)]
    assert service.linked == 1
    assert caplog.text.count("no link to b at 127.0.0.1 port 1") == 1
    assert await ingress.complete(replica_request()) == answer("a")
    await ingress.update([*service.statuses(), unreachable])  # not tried again so soon
    assert caplog.text.count("no link") == 1
    service.now = 60.0
    await ingress.update([*service.statuses(), unreachable])
    assert caplog.text.count("no link") == 2
    [_, broken] = await ingress.update([*service.statuses(), replace(unreachable, failure="broken")])
    assert broken.failure == "broken"


AWAKE, ASLEEP = PauseState(2), PauseState(1, sleep_level=1)


@pytest.mark.parametrize(
    ("states", "names"),
    [
        ({"a": (0, AWAKE), "b": (0, AWAKE)}, "ab"),
        ({"a": (0, AWAKE), "b": (1, AWAKE)}, "b"),
        ({"a": (1, ASLEEP), "b": (1, AWAKE)}, "b"),
        ({"a": (1, ASLEEP), "b": (1, ASLEEP)}, "ab"),  # requests wait at both
        ({"a": (1, ASLEEP), "b": (1, PauseState())}, "ab"),  # b has just started, and will sleep
        ({"a": (1, ASLEEP), "b": (0, AWAKE)}, "a"),  # none can answer yet
    ],
)
async def test_requests_go_to_replicas_that_others_are_not_ahead_of(
    service: Service, states: dict[str, tuple[int, PauseState]], names: str
) -> None:
    """So no request waits at a replica that cannot wake up, and none needs a failover from older weights."""
    ingress = await service.ingress()
    await service.add("b")
    statuses = [
        replace(status, card=replace(CARD, weights=Weights(version, str(version))), pause=pause)
        for status, (version, pause) in zip(service.statuses(), states.values(), strict=True)
    ]
    assert await ingress.update(statuses) == statuses
    assert service.linked == 2
    answers = [await ingress.complete(replica_request()) for _ in range(16)]
    assert {item.text for item in answers if isinstance(item, Answer)} == set(names)
    card = serving(statuses)
    assert (card.slots, card.num_outdated) == (len(names), int(states["a"][0] != states["b"][0]))


async def test_without_a_link_requests_wait_until_there_is_one(service: Service) -> None:
    ingress = service.links()
    waits = [asyncio.create_task(ingress.complete(replica_request())) for _ in range(3)]
    counts = asyncio.create_task(ingress.encode(replica_request()))
    streams = asyncio.create_task(anext(ingress.stream(replica_request())))
    await asyncio.sleep(0)
    await ingress.update([])
    await asyncio.sleep(0)
    assert not any(call.done() for call in (*waits, counts, streams))
    await ingress.update(service.statuses())
    assert await asyncio.gather(*waits) == [answer("a")] * 3
    assert (await counts, await streams) == (Encoded((1,)), Chunk(0, "a", (0,), Stats()))


async def test_a_request_waits_for_a_replica_no_longer_than_its_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A continued request has no more time than its first attempt had."""
    monkeypatch.setattr(wire, "_GRACE_S", 0.0)
    ingress = service.links()
    with pytest.raises(DeadlineExceeded, match=r"timeout_s is 0\.01, nothing was decoded"):
        await ingress.complete(replica_request(timeout_s=0.01))
    continued = structs.replace(replica_request(60.0), arrived=Arrival.ago(61.0), resume=Resume((1,), 1))
    with pytest.raises(DeadlineExceeded, match="no replica continued in time"):
        await anext(ingress.stream(continued))


async def test_a_replica_that_hangs_loses_its_calls_and_its_link(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_server, "HEARTBEAT_S", 0.01)
    ingress = await service.ingress()
    heartbeats = Mock(wraps=ingress.links["a"]._heartbeats)
    monkeypatch.setattr(ingress.links["a"], "_heartbeats", heartbeats)
    call = asyncio.create_task(ingress.complete(replica_request("wait")))
    await eventually(lambda: heartbeats.poll.call_count >= 2 and heartbeats.observe.call_count >= 3)
    assert not call.done()
    monkeypatch.setattr(link_server, "HEARTBEAT_S", 1000.0)
    monkeypatch.setattr(link_client, "HEARTBEAT_TIMEOUT_S", 0.5)
    with pytest.raises(ReplicaLost):
        await call
    assert ingress.links["a"].lost


async def test_a_replica_reports_the_requests_of_other_ingresses(service: Service) -> None:
    first, second = await service.ingress(), await service.ingress()
    busy = [asyncio.create_task(first.complete(replica_request("wait"))) for _ in range(5)]
    await eventually(lambda: service.replicas["a"].started == 5)
    assert await second.complete(replica_request()) == answer("a")
    assert second.router.inflight.now() == {"a": 5}
    for call in busy:
        call.cancel()
    await asyncio.gather(*busy, return_exceptions=True)
    await eventually(lambda: first.router.inflight.now() == {"a": 0})


async def test_concurrent_updates_open_one_link(service: Service) -> None:
    ingress = service.links()
    await asyncio.gather(*(ingress.update(service.statuses()) for _ in range(5)))
    await ingress.complete(replica_request())
    assert len(service.servers["a"].connections) == 1


async def test_a_request_without_an_encoding_is_refused(service: Service) -> None:
    ingress, deep = await service.ingress(), list[Any]()
    for _ in range(300):
        deep = [deep]
    for schema in ({"enum": ["\ud800"]}, {"enum": deep}):
        with pytest.raises(InvalidRequest, match="an integer beyond 64 bits"):
            await ingress.complete(structs.replace(replica_request(), token_ids=None, messages=(), tools=(schema,)))
    with pytest.raises(InvalidRequest, match="an integer beyond 64 bits"):
        await ingress.complete(structs.replace(replica_request(), token_ids=(2**64,)))
    assert await ingress.complete(replica_request()) == answer("a")
    assert ingress.router.inflight.now() == {"a": 0}


async def test_an_answer_without_an_encoding_fails_its_request_alone(service: Service) -> None:
    ingress = await service.ingress()
    service.replicas["a"].name = "half a character: \ud800"
    failed = await ingress.complete(replica_request())
    assert isinstance(failed, Failure)
    assert type(failed.error) is MrpServeError
    assert await ingress.encode(replica_request()) == Encoded((1,))
