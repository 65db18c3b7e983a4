"""A simulated service behind the real admission controllers: replicas of known speed, clients that obey or leave."""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from service.admission.charge import TokenCharge
from service.admission.controller import AdmissionController
from service.admission.keys import ApiKey
from service.decode.modes import Static
from service.engine.request import SamplingParams, Sharing
from service.errors import QueueFull
from service.ipc.data import Arrival
from service.messages.replica_status import ModelCard
from service.messages.wire import Chunk, Ending, ReplicaRequest
from service.settings.settings import Settings
from tests.admission.virtual import now
from tests.gateway.doubles import CARD, STATS

BLOCK = CARD.block_size
ANONYMOUS_KEY = ApiKey("anonymous")


def request(number: int, blocks: int, timeout_s: float = 600.0, **fields: Any) -> ReplicaRequest:
    return ReplicaRequest(
        str(number), Static(), SamplingParams(), blocks * BLOCK, timeout_s, Arrival(now()), token_ids=(1,), **fields
    )


@dataclass
class Lengths:
    """How many blocks requests ask for, and what part of them is decoded."""

    blocks: Callable[[random.Random], int] = lambda _: 16
    part: Callable[[random.Random], float] = lambda _: 1.0
    streams: float = 0.0


@dataclass
class Client:
    """One request and its outcome. Times in seconds. `waited_s`: from its admission to its slot."""

    arrived: float
    blocks: int
    decoded: int
    attempts: int = 0
    due: float | None = None
    waited_s: float | None = None
    ended: float | None = None


@dataclass
class Log:
    clients: list[Client] = field(default_factory=list)
    retries: int = 0
    retries_admitted: int = 0
    retry_after: list[int] = field(default_factory=list)
    decoded: list[tuple[float, int]] = field(default_factory=list)

    def goodput(self, start: float, end: float) -> float:
        """Blocks a second in that time."""
        return sum(blocks for at, blocks in self.decoded if start <= at < end) / (end - start)

    def waits(self) -> list[float]:
        return sorted(client.waited_s for client in self.clients if client.waited_s is not None)


class Service:
    """`slots` requests at a time, each at `pace` blocks a second, so `slots × pace` in all.

    Every attempt of a client comes to one of the ingresses at random, as proxies spread them.
    """

    def __init__(
        self, slots: int, pace: float, lengths: Lengths, seed: int = 1, tenants: int = 1, **settings: Any
    ) -> None:
        self.pace, self.lengths = pace, lengths
        self.random, self.spread = random.Random(seed), random.Random(seed)
        loop = asyncio.get_running_loop()
        made = Settings(**settings)
        self.controllers = [AdmissionController(made, loop.time, tenants=tenants) for _ in range(made.api_server_count)]
        self.card: ModelCard = replace(CARD, slots=slots, replica_slots=made.slots, max_model_len=10**6)
        self.log = Log()
        self.capacity = slots * pace

    def shrink(self, slots: int) -> None:
        """Sets the number of slots. Running requests continue."""
        self.card = replace(self.card, slots=slots)
        self.capacity = slots * self.pace
        for controller in self.controllers:
            controller.serves(self.card)

    async def request(self, key: ApiKey = ANONYMOUS_KEY, obeys: bool = True, tries: int = 50) -> Client:
        """Sends one request until it is admitted, and waits for its answer."""
        blocks = self.lengths.blocks(self.random)
        decoded = max(1, round(blocks * self.lengths.part(self.random)))
        client = Client(now(), blocks, decoded)
        self.log.clients.append(client)
        number = len(self.log.clients)
        while client.attempts < tries:
            client.attempts += 1
            controller = self.spread.choice(self.controllers)
            replica_request = request(number, client.blocks, sharing=Sharing(key.name, key.weight))
            if charge := self.admit(controller, replica_request, client, key):
                await self.serve(controller, replica_request, charge, client)
                return client
            if not obeys:
                return client
            await asyncio.sleep(self.log.retry_after[-1] + self.random.uniform(0.01, 0.2))
        return client

    def admit(
        self, controller: AdmissionController, replica_request: ReplicaRequest, client: Client, key: ApiKey
    ) -> TokenCharge | None:
        controller.serves(self.card)
        self.log.retries += client.attempts > 1
        try:
            charge = controller.admit(key, [replica_request])
        except QueueFull as refusal:
            self.log.retry_after.append(max(1, math.ceil(refusal.retry_after or 0)))
            return None
        self.log.retries_admitted += client.attempts > 1
        return charge

    async def serve(
        self, controller: AdmissionController, replica_request: ReplicaRequest, charge: TokenCharge, client: Client
    ) -> None:
        admitted_at, streams = now(), self.random.random() < self.lengths.streams
        async with controller.slot(
            structs.replace(replica_request, stream_interval=1 if streams else 16), charge
        ) as usage:
            began = now()
            client.waited_s = began - admitted_at
            if not streams:  # a whole answer
                await asyncio.sleep(client.decoded / self.pace)
                self.log.decoded += [(began + block / self.pace, 1) for block in range(1, client.decoded + 1)]
            else:
                for block in range(client.decoded):
                    await asyncio.sleep(1 / self.pace)
                    self.log.decoded.append((now(), 1))
                    usage.add(Chunk(block, "", (1,) * BLOCK, STATS))
            usage.add(Ending("stop", 1, client.decoded * BLOCK, STATS))
        client.ended = now()

    async def poisson(self, rate: float, seconds: float, **how: Any) -> list[asyncio.Task[Client]]:
        """Clients that come at random, `rate` a second."""
        tasks, end = [], now() + seconds
        while (gap := self.random.expovariate(rate)) + now() < end:
            await asyncio.sleep(gap)
            tasks.append(asyncio.ensure_future(self.request(**how)))
        return tasks
