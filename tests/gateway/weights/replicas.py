"""Several replicas in this process, each with weights of its own, behind several ingresses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx

from service.errors import MrpServeError, ReplicaLost
from service.gateway.ingress import Ingress
from service.messages.replica_status import ControlCommand, ControlResult, Snapshot, Status
from service.messages.wire import Failure, Items, ReplicaRequest, Weights
from service.model import load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.conftest import UNMEASURED
from tests.gateway.helpers import client
from tests.replicas import local_generator

ADMIN = {"Authorization": "Bearer boss"}
WEIGHTS = "/admin/weights"


class Replicas:
    """A backend over several generators, which take turns. The test starts them again, as Serve would.

    `lost_after`: so many items of the next stream come, then its replica is lost, and `at_loss` is called.
    `errors`: the errors that replicas return for commands, by the number of the replica and the kind of the command.
    """

    def __init__(self, model: Path, count: int = 2, **changes: Any) -> None:
        given: dict[str, Any] = {"device": "cpu", "dtype": "float32", "kv_cache_tokens": 4096}
        self.settings = Settings(model=str(model), **(given | {"admin_keys": ("boss",)} | changes))
        self.generators = [self._started(number) for number in range(count)]
        self.requests: list[tuple[int, ReplicaRequest]] = []
        self.lost_after: int | None = None
        self.at_loss: Callable[[], Awaitable[object]] | None = None
        self.errors: dict[tuple[int, type[ControlCommand]], MrpServeError] = {}
        self.ingresses: list[Ingress] = []
        self._turn = 0

    def _started(self, number: int) -> Replica:
        checkpoint = load_checkpoint(self.settings.model)
        return local_generator(f"r{number}", checkpoint, self.settings, deps=UNMEASURED)

    def start_again(self, number: int) -> None:
        """A replica that was lost comes back, with the weights of the setting `model`."""
        self.generators[number].close()
        self.generators[number] = self._started(number)

    def ingress(self) -> httpx.AsyncClient:
        """A client of one more ingress."""
        self.ingresses.append(Ingress(f"i{len(self.ingresses)}", self.settings, self))
        return client(self.ingresses[-1].app(answers_request_id=True))

    def close(self) -> None:
        for generator in self.generators:
            generator.close()

    # --- the backend ---------------------------------------------------------------------------------

    def _next(self, request: ReplicaRequest) -> Replica:
        number = self._turn % len(self.generators)
        self._turn += 1
        self.requests.append((number, request))
        return self.generators[number]

    async def count(self, request: ReplicaRequest) -> int | Failure:
        return await self._next(request).count(request)

    async def stream(self, request: ReplicaRequest) -> Items:
        left, self.lost_after = self.lost_after, None
        async with aclosing(self._next(request).stream(request)) as items:
            async for item in items:
                if left == 0:
                    if self.at_loss is not None:
                        await self.at_loss()
                    raise ReplicaLost("killed", retry_after=1.0)
                left = None if left is None else left - 1
                yield item

    def note_error(self, error: MrpServeError) -> None:
        pass

    async def statuses(self) -> list[Status]:
        return [generator.status() for generator in self.generators]

    async def control(self, command: ControlCommand) -> list[ControlResult]:
        return await asyncio.gather(*(self._control(number, command) for number in range(len(self.generators))))

    async def _control(self, number: int, command: ControlCommand) -> ControlResult:
        replica, error = self.generators[number], self.errors.get((number, type(command)))
        if error is None:
            return await replica.control(command)
        status = replica.status()
        return ControlResult(status.replica, status.card.weights, status.pause, error=error)

    async def announce(self, weights: Weights) -> None:
        for ingress in self.ingresses:
            ingress.require_weights(weights)

    async def snapshots(self, own: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        return [own], [generator.snapshot() for generator in self.generators]
