"""Requests over links: answers, errors, cancellation, loss, leaving, secrets. Real sockets, doubles of replicas."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from service.arrival import Arrival
from service.decode.modes import Static
from service.engine.request import SamplingParams, Stats
from service.errors import DeadlineExceeded, EngineFailed, MrpServeError, ReplicaLost
from service.link import client as link_client
from service.link import requests as linked
from service.link.messages import Alive, Call
from service.link.requests import LinkedRequests
from service.link.server import LinkServer
from service.routing.router import Router
from service.wire import Address, Answer, Chunk, Ending, Failure, Items, Status, Work
from tests.gateway import doubles
from tests.gateway.helpers import eventually

CARD = replace(doubles.CARD, name="m", places=1)


def work(name: str = "id", timeout_s: float = 60.0) -> Work:
    return Work(name, Static(), SamplingParams(), 4, timeout_s, Arrival.now(), token_ids=(1,))


def answer(text: str) -> Answer:
    return Answer(text, (1,), Ending("length", 1, 1, Stats()))


class Replica:
    """Answers with its name. A work named `wait` waits for ever, `bug` raises, `fail` fails."""

    def __init__(self, name: str) -> None:
        self.name, self.begun, self.cancelled = name, 0, 0
        self.may_go_on = asyncio.Event()

    async def complete(self, work: Work) -> Answer | Failure:
        async with self._counted():
            await self._act(work)
            return Failure(EngineFailed("broken")) if work.request_id == "fail" else answer(self.name)

    async def count(self, work: Work) -> int | Failure:
        return len(work.token_ids or ())

    async def stream(self, work: Work) -> Items:
        async with self._counted():
            for index in range(3):
                yield Chunk(index, self.name, (index,), Stats())
                await self._act(work)
            yield Ending("length", 1, 3, Stats())

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self.begun += 1
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    async def _act(self, work: Work) -> None:
        if work.request_id == "wait":
            await self.may_go_on.wait()
        if work.request_id == "bug":
            raise ValueError("a prompt that must not be told")


class Otherwise:
    """The other way to the replicas: notes what goes there."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    async def complete(self, work: Work) -> Answer | Failure:
        self.works.append(work)
        return answer("otherwise")

    async def count(self, work: Work) -> int | Failure:
        self.works.append(work)
        return -1

    async def stream(self, work: Work) -> Items:
        self.works.append(work)
        yield Ending("length", 1, 0, Stats())

    async def learn(self, statuses: Sequence[Status]) -> None:
        raise AssertionError("the links learn, not the other way")


class Service:
    """Replicas with their servers, and ingresses that know them."""

    def __init__(self) -> None:
        self.replicas: dict[str, Replica] = {}
        self.servers: dict[str, LinkServer] = {}
        self.otherwise = Otherwise()
        self.now, self.linked = 0.0, -1

    async def add(self, name: str) -> Replica:
        self.replicas[name] = replica = Replica(name)
        self.servers[name] = await LinkServer.start(replica, "127.0.0.1")
        return replica

    def statuses(self) -> list[Status]:
        return [Status(name, None, CARD, server.address) for name, server in self.servers.items()]

    async def ingress(self) -> LinkedRequests:
        router = Router(1, by_prefix=False, routed=lambda how: None)
        requests = LinkedRequests(router, self.otherwise, self._note, clock=lambda: self.now)
        await requests.learn(self.statuses())
        return requests

    def _note(self, linked: int) -> None:
        self.linked = linked


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    await made.add("a")
    yield made
    for server in made.servers.values():
        await server.close()


async def test_answers_blocks_and_counts_come_through(service: Service) -> None:
    ingress = await service.ingress()
    assert await ingress.complete(work()) == answer("a")
    assert await ingress.count(work()) == 1
    items = [item async for item in ingress.stream(work())]
    assert items == [*(Chunk(index, "a", (index,), Stats()) for index in range(3)), Ending("length", 1, 3, Stats())]
    assert service.servers["a"].calls == 0
    assert (service.otherwise.works, service.linked) == ([], 1)


async def test_many_calls_share_a_link_and_keep_apart(service: Service) -> None:
    ingress = await service.ingress()

    async def tokens() -> list[int]:
        return [item.index async for item in ingress.stream(work()) if isinstance(item, Chunk)]

    assert await asyncio.gather(*(tokens() for _ in range(200))) == [[0, 1, 2]] * 200


async def test_a_failure_is_an_answer_and_a_bug_shows_only_the_requests_id(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    ingress = await service.ingress()
    failed, bug = await ingress.complete(work("fail")), await ingress.complete(work("bug"))
    assert isinstance(failed, Failure)
    assert isinstance(failed.error, EngineFailed)
    assert isinstance(bug, Failure)
    assert type(bug.error) is MrpServeError
    assert "must not be told" not in str(bug.error) + caplog.text
    items = [item async for item in ingress.stream(work("bug"))]
    assert [type(item) for item in items] == [Chunk, Failure]


async def test_who_leaves_is_cancelled_in_the_replica(service: Service) -> None:
    ingress, replica = await service.ingress(), service.replicas["a"]
    asked = asyncio.create_task(ingress.complete(work("wait")))
    await eventually(lambda: replica.begun == 1)
    asked.cancel()
    await eventually(lambda: replica.cancelled == 1)
    async with aclosing(ingress.stream(work("wait"))) as items:
        await anext(items)
    await eventually(lambda: replica.cancelled == 2)
    assert service.servers["a"].calls == 0


async def test_an_ingress_that_is_gone_has_no_calls(service: Service) -> None:
    ingress, replica = await service.ingress(), service.replicas["a"]
    asked = asyncio.create_task(ingress.complete(work("wait")))
    await eventually(lambda: replica.begun == 1)
    ingress._links["a"]._transport.close()
    with pytest.raises(ReplicaLost):
        await asked
    await eventually(lambda: replica.cancelled == 1)


async def test_a_lost_replica_loses_its_calls_at_once_and_gets_no_more(service: Service) -> None:
    ingress = await service.ingress()
    first, streamed = asyncio.create_task(ingress.complete(work("wait"))), ingress.stream(work("wait"))
    assert isinstance(await anext(streamed), Chunk)
    await service.servers["a"].close()
    for lost in (first, anext(streamed)):
        with pytest.raises(ReplicaLost) as caught:
            await lost
        assert caught.value.retry_after
    assert await ingress.complete(work()) == answer("otherwise")
    await service.add("a")  # as a replica of that name never does, an unreachable one that is back
    await ingress.learn(service.statuses())
    assert await ingress.complete(work()) == answer("a")


async def test_a_replica_that_leaves_finishes_its_calls_and_takes_no_more(service: Service) -> None:
    ingress, leaving = await service.ingress(), service.replicas["a"]
    await service.add("b")
    running = [asyncio.create_task(ingress.complete(work("wait"))) for _ in range(2)]
    await eventually(lambda: leaving.begun == 2)
    await ingress.learn(service.statuses())
    closing = asyncio.create_task(service.servers["a"].close(60.0))
    await eventually(lambda: not ingress._links["a"].usable)
    assert {(await ingress.complete(work())).text for _ in range(8)} == {"b"}  # type: ignore[union-attr]
    await ingress.learn(service.statuses())  # Serve may still count it
    assert {(await ingress.complete(work())).text for _ in range(8)} == {"b"}  # type: ignore[union-attr]
    leaving.may_go_on.set()
    assert await asyncio.gather(*running) == [answer("a")] * 2
    await closing
    assert service.otherwise.works == []


async def test_a_call_that_crosses_the_leaving_goes_elsewhere(service: Service) -> None:
    ingress = await service.ingress()
    for name in "bcd":
        await service.add(name)
    await ingress.learn(service.statuses())
    for name in "abc":
        service.servers[name].leaving = True  # the ingress does not know yet
    answers = await asyncio.gather(*(ingress.complete(work()) for _ in range(32)))
    assert all(isinstance(one, Answer) for one in answers)
    assert [service.replicas[name].begun for name in "abc"] == [0, 0, 0]


async def test_the_last_words_of_a_replica_that_leaves_arrive(service: Service) -> None:
    ingress, replica = await service.ingress(), service.replicas["a"]
    asked = [asyncio.create_task(ingress.complete(work("wait"))) for _ in range(3)]
    await eventually(lambda: replica.begun == 3)
    closing = asyncio.create_task(service.servers["a"].close(60.0))
    await asyncio.sleep(0)
    replica.may_go_on.set()
    await closing
    assert await asyncio.gather(*asked) == [answer("a")] * 3


async def test_a_replica_out_of_patience_ends_its_calls(service: Service) -> None:
    ingress = await service.ingress()
    asked = asyncio.create_task(ingress.complete(work("wait")))
    await eventually(lambda: service.replicas["a"].begun == 1)
    await service.servers["a"].close(0.01)
    with pytest.raises(ReplicaLost):
        await asked


async def test_who_waits_too_long_for_the_first_word_is_told(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked, "patience_s", lambda work: 0.01)
    ingress, replica = await service.ingress(), service.replicas["a"]
    with pytest.raises(DeadlineExceeded, match=r"timeout_s is 0\.5"):
        await ingress.complete(work("wait", 0.5))
    await eventually(lambda: replica.cancelled == 1)


async def test_only_the_first_word_has_a_limit(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    limited: list[str] = []
    monkeypatch.setattr(linked, "patience_s", lambda work: limited.append(work.request_id) or 60.0)
    ingress = await service.ingress()
    assert len([item async for item in ingress.stream(work())]) == 4
    assert limited == ["id"]


async def test_requests_go_another_way_while_a_replica_has_no_link(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    ingress = await service.ingress()
    unreachable = Status("b", None, CARD, Address("127.0.0.1", 1, "s"))
    await ingress.learn([*service.statuses(), unreachable])
    assert service.linked == 0
    assert caplog.text.count("no link to b at 127.0.0.1 port 1") == 1
    assert await ingress.complete(work()) == answer("otherwise")
    assert await ingress.count(work()) == -1
    assert [type(item) async for item in ingress.stream(work())] == [Ending]
    await ingress.learn([*service.statuses(), unreachable])  # not tried again so soon
    assert caplog.text.count("no link") == 1
    service.now = 60.0
    await ingress.learn([*service.statuses(), unreachable])
    assert caplog.text.count("no link") == 2
    await ingress.learn([*service.statuses(), Status("c", None, CARD)])  # a replica that takes no links
    assert await ingress.complete(work()) == answer("otherwise")
    await ingress.learn([*service.statuses(), replace(unreachable, failure="broken")])
    assert await ingress.complete(work()) == answer("a")


async def test_a_replica_that_hangs_loses_its_calls_and_its_link(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_client, "HUNG_S", 0.6)
    ingress = await service.ingress()
    asked = asyncio.create_task(ingress.complete(work("wait")))
    await asyncio.sleep(1.0)
    assert not asked.done()  # the replica says that it is alive
    service.servers["a"]._beating.cancel()
    with pytest.raises(ReplicaLost):
        await asked
    assert ingress._links["a"].lost
    assert await ingress.complete(work()) == answer("otherwise")


async def test_a_replica_without_a_first_word_has_no_link(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its machine accepts connections for a process that is stopped."""
    monkeypatch.setattr(linked, "_CONNECT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = Address("127.0.0.1", stopped.getsockname()[1], "s")
        ingress = await service.ingress()
        await ingress.learn([*service.statuses(), Status("b", None, CARD, address)])
    assert "no link to b" in caplog.text
    assert await ingress.complete(work()) == answer("otherwise")


async def test_without_replicas_requests_go_another_way(service: Service) -> None:
    requests = LinkedRequests(Router(1, by_prefix=False, routed=lambda how: None), service.otherwise, service._note)
    assert await requests.complete(work()) == answer("otherwise")
    ingress = await service.ingress()
    await ingress.learn([])
    assert await ingress.complete(work()) == answer("otherwise")


async def test_a_replica_tells_of_other_ingresses(service: Service) -> None:
    first, second = await service.ingress(), await service.ingress()
    busy = [asyncio.create_task(first.complete(work("wait"))) for _ in range(5)]
    await eventually(lambda: service.replicas["a"].begun == 5)
    assert await second.complete(work()) == answer("a")
    assert second._router._loads.now() == {"a": 5}
    for one in busy:
        one.cancel()
    await asyncio.gather(*busy, return_exceptions=True)
    await eventually(lambda: first._router._loads.now() == {"a": 0})


async def test_two_questions_at_once_open_one_link(service: Service) -> None:
    requests = LinkedRequests(Router(1, by_prefix=False, routed=lambda how: None), service.otherwise, service._note)
    await asyncio.gather(*(requests.learn(service.statuses()) for _ in range(5)))
    await requests.complete(work())
    assert len(service.servers["a"]._connections) == 1


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("!I", 64) + b"0" * 64,
        struct.pack("!I", 65),
        struct.pack("!I", 2**32 - 1) + b"0" * 100,
        struct.pack("!I", 0),
        struct.pack("!I", 5) + b"wrong" + struct.pack("!I", 5) + b"again",
    ],
)
async def test_nothing_is_unpickled_before_the_secret(
    service: Service, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "loads", never)
    address = service.servers["a"].address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    call = pickle.dumps([Call(0, "complete", work())])
    writer.write(sent + struct.pack("!I", len(call)) + call)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    assert service.replicas["a"].begun == 0
    assert address.secret not in repr(address)


async def test_frames_arrive_whole_in_any_pieces(service: Service) -> None:
    address = service.servers["a"].address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    calls = pickle.dumps([Call(7, "complete", work()), Call(8, "count", work())])
    stream = b"".join(struct.pack("!I", len(one)) + one for one in (address.secret.encode(), calls))
    async with AsyncExitStack() as stack:
        stack.callback(writer.close)
        for byte in stream:
            writer.write(bytes([byte]))
            await writer.drain()
        found: list[Any] = []
        while len(found) < 4:
            (length,) = struct.unpack("!I", await reader.readexactly(4))
            messages = pickle.loads(await reader.readexactly(length))
            found += [message for message in messages if not isinstance(message, Alive)]
    assert {(type(one).__name__, one.number) for one in found} == {("Item", 7), ("End", 7), ("Item", 8), ("End", 8)}
