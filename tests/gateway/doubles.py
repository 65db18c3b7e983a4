"""Replicas that die, clients that leave, and replicas whose answers a test scripts."""

from __future__ import annotations

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
from service.gateway.pipeline import RequestPipeline
from service.messages.replica_status import (
    ControlCommand,
    ControlResult,
    ModelCard,
    SetPause,
    Snapshot,
    Status,
)
from service.messages.wire import Chunk, Ending, Failure, Items, ReplicaRequest, Weights
from service.quality.presets import Presets
from service.quality.schema import Band
from service.replica.replica import Replica
from service.routing.failover import FailoverPolicy
from service.settings.settings import Settings
from tests.gateway.generate.helpers import GENERATE
from tests.gateway.local import LocalBackend

# --- replicas that die -----------------------------------------------------------------------------


class Dying(LocalBackend):
    """Two replicas. The first is lost after some items of an answer, the second takes the next attempt.

    A whole answer is lost before its last item.
    """

    def __init__(self, first: Replica, second: Replica, after: int) -> None:
        super().__init__(second)
        self._first, self._after = LocalBackend(first), after
        self.requests: list[ReplicaRequest] = []

    async def stream(self, request: ReplicaRequest) -> Items:
        self.requests.append(request)
        dies = len(self.requests) == 1
        items = (self._first if dies else super()).stream(request)
        left = self._after if dies else sys.maxsize
        async with aclosing(items):
            async for item in items:
                if not left or (dies and request.together > 1 and _is_last(item)):
                    raise ReplicaLost("killed", retry_after=1.0)
                left -= 1
                yield item


def _is_last(item: object) -> bool:
    return isinstance(item, Ending) or (isinstance(item, Chunk) and item.ending is not None)


# --- clients that leave ----------------------------------------------------------------------------


class Visitor:
    """One request at the level of ASGI. Its client leaves after the first block, or when the test says so."""

    def __init__(
        self, request: Mapping[str, Any], version: str = "2.3", stays: bool = False, headers: Mapping[str, str] = {}
    ) -> None:
        self.body, self.version, self.stays = json.dumps(request).encode(), version, stays
        self.headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        self.sent = b""
        self.got_block, self._asked = asyncio.Event(), False

    async def visit(self, app: ASGIApp) -> None:
        scope = {"type": "http", "method": "POST", "path": GENERATE, "headers": self.headers, "query_string": b""}
        await app(scope | {"root_path": "", "asgi": {"spec_version": self.version}}, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await (asyncio.Event() if self.stays else self.got_block).wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.got_block.is_set() and not self.stays and self.version >= "2.4":
            raise OSError("the client has left")
        self.sent += message.get("body", b"")
        if b"event: block" in self.sent:
            self.got_block.set()


# --- replicas that say what a test wants -----------------------------------------------------------

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
    quality=Presets({"lossless": (Band(mode="static"),)}, missing="none was made"),
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

    async def snapshots(self, own: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        return [own], []


# --- pipelines without HTTP ------------------------------------------------------------------------


def pipeline(backend: Backend, policy: FailoverPolicy | None = None) -> RequestPipeline:
    """A pipeline over a backend that admits everything. `policy`: default: three failovers."""
    admission = AdmissionController(Settings())
    admission.serves(replace(CARD, max_model_len=10**6))
    return RequestPipeline(backend, admission, Draining(), policy or FailoverPolicy(3))


def free() -> TokenCharge:
    """The charge of a request that nobody pays."""
    return TokenCharge(lambda _: None)
