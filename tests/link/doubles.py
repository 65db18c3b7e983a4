"""Doubles of replicas with the real server of links, and ingresses that know them."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from msgspec import structs

from service.decode.modes import Static
from service.engine.request import SamplingParams, Stats
from service.errors import EngineFailed
from service.ipc.data import Arrival
from service.link.requests import ReplicaLinks
from service.link.server import LinkServer
from service.messages.replica_status import Status
from service.messages.wire import Answer, Chunk, Encoded, Ending, Failure, ReplicaRequest, ReplicaStream
from service.routing.router import Router
from tests.gateway import doubles
from tests.gateway.helpers import eventually
from tests.gathered import gathered

CARD = replace(doubles.CARD, name="m", slots=1)


def replica_request(name: str = "id", timeout_s: float = 60.0) -> ReplicaRequest:
    return ReplicaRequest(name, Static(), SamplingParams(), 4, timeout_s, Arrival.now(), token_ids=(1,))


def answer(text: str) -> Answer:
    return Answer(text, (1,), Ending("length", 1, 1, Stats()))


def chunk_of(whole: Answer) -> Chunk:
    return Chunk(0, whole.text, whole.token_ids, whole.ending.stats, ending=whole.ending)


class Ingress(ReplicaLinks):
    async def complete(self, request: ReplicaRequest) -> Answer | Failure:
        return await gathered(self.stream(structs.replace(request, stream_interval=16)))


class Replica:
    """Answers with its name. A request named `wait` waits for ever, `bug` raises, `fail` fails."""

    def __init__(self, name: str) -> None:
        self.name, self.started, self.cancelled = name, 0, 0
        self.may_go_on = asyncio.Event()

    async def encode(self, request: ReplicaRequest) -> Encoded | Failure:
        return Encoded(request.token_ids or ())

    async def stream(self, request: ReplicaRequest) -> ReplicaStream:
        async with self._counted():
            if request.stream_interval > 1:
                await self._act(request)
                yield Failure(EngineFailed("broken")) if request.request_id == "fail" else chunk_of(answer(self.name))
                return
            for index in range(3):
                yield Chunk(index, self.name, (index,), Stats())
                await self._act(request)
            yield Ending("length", 1, 3, Stats())

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self.started += 1
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    async def _act(self, request: ReplicaRequest) -> None:
        if request.request_id == "wait":
            await self.may_go_on.wait()
        if request.request_id == "bug":
            raise ValueError("a prompt that must not be shown")


class Service:
    def __init__(self) -> None:
        self.replicas: dict[str, Replica] = {}
        self.servers: dict[str, LinkServer] = {}
        self.now, self.linked = 0.0, -1
        self.tls: tuple[ssl.SSLContext | None, ssl.SSLContext | None] = (None, None)  # of replicas, of ingresses

    async def add(self, name: str) -> Replica:
        self.replicas[name] = replica = Replica(name)
        self.servers[name] = await LinkServer.start(replica, "127.0.0.1", self.tls[0])
        return replica

    def statuses(self) -> list[Status]:
        return [Status(name, None, CARD, server.address) for name, server in self.servers.items()]

    async def ingress(self) -> Ingress:
        links = self.links()
        await links.update(self.statuses())
        return links

    def links(self) -> Ingress:
        """An ingress that knows no replica."""
        router = Router(1, by_prefix=False, on_route=lambda reason: None)
        return Ingress(router, self._note, self.tls[1], clock=lambda: self.now)

    def _note(self, linked: int) -> None:
        self.linked = linked


async def answers_of_a_drain(service: Service) -> list[Answer | Failure]:
    """The answers to three requests that run while their replica drains."""
    ingress, replica = await service.ingress(), service.replicas["a"]
    calls = [asyncio.create_task(ingress.complete(replica_request("wait"))) for _ in range(3)]
    await eventually(lambda: replica.started == 3)
    closing = asyncio.create_task(service.servers["a"].close(60.0))
    await asyncio.sleep(0)
    replica.may_go_on.set()
    await closing
    return await asyncio.gather(*calls)
