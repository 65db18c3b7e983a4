"""Replicas that are lost, clients that leave, and replicas whose answers a test scripts."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.types import ASGIApp

from service.admission.charge import TokenCharge
from service.admission.controller import AdmissionController
from service.engine.request import ForwardCounts, Stats
from service.errors import MrpServeError, ReplicaLost
from service.gateway.backend import Backend
from service.gateway.draining import Draining
from service.gateway.http.bodies import Bodies
from service.gateway.pipeline import RequestPipeline
from service.messages.replica_status import ControlCommand, ControlResult, ModelCard, SetPause, Snapshot, Status
from service.messages.wire import Chunk, Ending, Failure, ReplicaRequest, ReplicaStream, Weights
from service.quality.presets import Presets
from service.quality.schema import PresetPlan
from service.replica.replica import Replica
from service.routing.failover import FailoverPolicy
from service.settings.settings import Settings
from tests.gateway.apis import GENERATE
from tests.gateway.local import LocalBackend


class LosesFirst(LocalBackend):
    """Two replicas. The first is lost after some items of an answer, the second takes the next attempt.

    A whole answer is lost before its last item.
    """

    def __init__(self, first: Replica, second: Replica, after: int) -> None:
        super().__init__(second)
        self._first, self._after = first, after

    async def stream(self, request: ReplicaRequest) -> ReplicaStream:
        if is_first := not self.requests:
            self.requests.append(request)
        items = self._first.stream(request) if is_first else super().stream(request)
        left = self._after if is_first else sys.maxsize
        async with aclosing(items):
            async for item in items:
                if not left or (is_first and request.stream_interval > 1 and _is_last(item)):
                    raise ReplicaLost("killed", retry_after=1.0)
                left -= 1
                yield item


def _is_last(item: object) -> bool:
    return isinstance(item, Ending) or (isinstance(item, Chunk) and item.ending is not None)


class AsgiClient:
    """One request at the level of ASGI. Its client leaves with the first block, or `stays` until `leaves` is set."""

    def __init__(
        self,
        request: Mapping[str, Any],
        version: str = "2.3",
        stays: bool = False,
        headers: Mapping[str, str] = {},
        path: str = GENERATE,
    ) -> None:
        self.version, self.stays = version, stays
        self.scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "root_path": ""}
        self.scope |= {"headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()]}
        self._bodies = [json.dumps(request).encode()]
        #: what the application has sent of the body
        self.content = b""
        self.got_event, self.got_block, self.leaves = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def request(self, app: ASGIApp) -> None:
        await app(self.scope | {"asgi": {"spec_version": self.version}}, self.receive, self.send)

    async def receive(self) -> dict[str, Any]:
        if self._bodies:
            return {"type": "http.request", "body": self._bodies.pop(), "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self.leaves.is_set() and self.version >= "2.4":
            raise OSError("the client has left")
        self.content += message.get("body", b"")
        if b"event:" in self.content:
            self.got_event.set()
        if b"event: block" in self.content:
            self.got_block.set()
            if not self.stays:
                self.leaves.set()


CARD = ModelCard(
    name="golden",
    block_size=4,
    vocab_size=64,
    max_model_len=256,
    mrp=None,
    modes=("static", "dynamic"),
    default_mode="static",
    defaults={"static": {"tokens_per_step": 1}, "dynamic": {"threshold": 0.9}},
    chat=True,
    quality=Presets({"lossless": (PresetPlan(mode="static", tokens_per_forward=1.0),)}, missing="none was made"),
    slots=64,
    replica_slots=64,
)
STATS = Stats(ForwardCounts(denoise=1), decoded_tokens=1, first_block_s=0.001, total_s=0.001)


class Scripted:
    """A backend that gives every request the same items; an exception among them is raised. It may hang after them.

    `down`: what its card raises. `serves`: its card.
    """

    def __init__(
        self,
        *items: Chunk | Ending | Failure | Exception,
        down: Exception | None = None,
        hangs: bool = False,
        serves: ModelCard = CARD,
    ) -> None:
        self.items, self.down, self.hangs, self.served = items, down, hangs, serves
        self.requests: list[ReplicaRequest] = []
        self.live, self.waiting_for = 0, 1
        self.all_hang = asyncio.Event()

    async def stream(self, request: ReplicaRequest) -> AsyncGenerator[Chunk | Ending | Failure]:
        self.requests.append(request)
        self.live += 1
        try:
            for item in self.items:
                if isinstance(item, Exception):
                    raise item
                yield item
            if self.hangs:
                if self.live == self.waiting_for:
                    self.all_hang.set()
                await asyncio.Event().wait()
        finally:
            self.live -= 1

    def note_error(self, error: MrpServeError) -> None:
        pass

    async def statuses(self) -> list[Status]:
        if self.down is not None:
            raise self.down
        return [Status("r0", None, self.served)]

    async def control(self, command: ControlCommand) -> list[ControlResult]:
        if isinstance(command, SetPause):
            return [ControlResult("r0", Weights(), command.state)]
        return [ControlResult("r0", command.weights)]

    async def announce(self, weights: Weights) -> None:
        pass

    async def snapshots(self, ingress: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        return [ingress], []


def pipeline(backend: Backend, policy: FailoverPolicy | None = None) -> RequestPipeline:
    """A pipeline over a backend that admits everything. `policy`: default: three failovers."""
    admission = AdmissionController(Settings())
    admission.serves(replace(CARD, max_model_len=10**6))
    return RequestPipeline(backend, admission, Draining(Bodies()), policy or FailoverPolicy(3))


def uncharged() -> TokenCharge:
    """The charge of a request that no key pays."""
    return TokenCharge(lambda _: None)
