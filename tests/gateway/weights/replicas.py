"""Several replicas in this process, each with weights of its own, behind several ingresses; calls of /admin/weights."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx

from service.decode.modes import Static
from service.engine import Engine, EngineDeps, GenerationRequest
from service.errors import MrpServeError, ReplicaLost
from service.gateway.deps import IngressDeps
from service.gateway.ingress import Ingress
from service.gateway.weights import KnownWeights, UpdateWeightsAnswer
from service.messages.replica_status import ControlCommand, ControlResult, Snapshot, Status
from service.messages.wire import Encoded, Failure, ReplicaRequest, ReplicaStream, Weights
from service.model import load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.conftest import UNMEASURED
from tests.gateway.generate.helpers import PROMPT, body, problem
from tests.gateway.helpers import assert_shape, client
from tests.other_weights import FIRST
from tests.replicas import local_generator

ADMIN = {"Authorization": "Bearer boss"}
WEIGHTS = "/admin/weights"
TOKENS = 16
SHORT = IngressDeps(catch_up_s=0.01, failover_s=0.001, longest_failover_s=0.01)
REQUEST = body(max_new_tokens=TOKENS, ignore_eos=True)


class Replicas:
    """A backend over several replicas, which take turns. The test restarts them, as Serve would."""

    def __init__(self, count: int = 2, deps: EngineDeps = UNMEASURED, **changes: Any) -> None:
        defaults: dict[str, Any] = {"device": "cpu", "dtype": "float32", "kv_cache_tokens": 4096}
        self.settings = Settings(model=str(FIRST), **(defaults | {"admin_keys": ("boss",)} | changes))
        self._deps = deps
        self.replicas = [self._start(number) for number in range(count)]
        self.requests: list[ReplicaRequest] = []
        #: so many items of the next stream come, then its replica is lost, and `at_loss` is called
        self.lost_after: int | None = None
        self.at_loss: Callable[[], Awaitable[object]] | None = None
        #: the errors that replicas return for commands, by the number of the replica and the kind of the command
        self.errors: dict[tuple[int, type[ControlCommand]], MrpServeError] = {}
        self.ingresses: list[Ingress] = []

    def _start(self, number: int) -> Replica:
        checkpoint = load_checkpoint(self.settings.model)
        return local_generator(f"r{number}", checkpoint, self.settings, deps=self._deps)

    def restart(self, number: int) -> None:
        """Replaces a replica by a new one with the weights of the setting `model`."""
        self.replicas[number].close()
        self.replicas[number] = self._start(number)

    def ingress(self) -> httpx.AsyncClient:
        self.ingresses.append(Ingress(f"i{len(self.ingresses)}", self.settings, self, SHORT))
        return client(self.ingresses[-1].app(answers_request_id=True))

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()

    def _next(self, request: ReplicaRequest) -> Replica:
        replica = self.next_replica
        self.requests.append(request)
        return replica

    @property
    def next_replica(self) -> Replica:
        return self.replicas[len(self.requests) % len(self.replicas)]

    async def encode(self, request: ReplicaRequest) -> Encoded | Failure:
        return await self._next(request).encode(request)

    async def stream(self, request: ReplicaRequest) -> ReplicaStream:
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
        return [replica.status() for replica in self.replicas]

    async def control(self, command: ControlCommand) -> list[ControlResult]:
        return await asyncio.gather(*(self._control(number, command) for number in range(len(self.replicas))))

    async def _control(self, number: int, command: ControlCommand) -> ControlResult:
        replica, error = self.replicas[number], self.errors.get((number, type(command)))
        if error is None:
            return await replica.control(command)
        status = replica.status()
        return ControlResult(status.replica, status.card.weights, status.pause, error=error)

    async def announce(self, weights: Weights) -> None:
        for ingress in self.ingresses:
            ingress.require_weights(weights)

    async def snapshots(self, ingress: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        return [ingress], [replica.snapshot() for replica in self.replicas]


async def update(http: httpx.AsyncClient, model: Path, **fields: Any) -> dict[str, Any]:
    response = await http.post(WEIGHTS, json={"model": str(model), **fields}, headers=ADMIN)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert_shape(UpdateWeightsAnswer, answer)
    return answer


async def refused(http: httpx.AsyncClient, status: int, **fields: Any) -> dict[str, Any]:
    return problem(await http.post(WEIGHTS, json=fields, headers=ADMIN), status)


async def listed(http: httpx.AsyncClient) -> dict[str, Any]:
    response = await http.get(WEIGHTS, headers=ADMIN)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert_shape(KnownWeights, answer)
    return answer


def fresh_answer(checkpoint: Path, request: GenerationRequest | None = None) -> list[int]:
    """The answer to `REQUEST`, or to another request, of an engine that starts with a checkpoint."""
    request = request or GenerationRequest("x", tuple(PROMPT), Static(), max_new_tokens=TOKENS)
    return list(Engine(load_checkpoint(checkpoint), deps=UNMEASURED).generate([request])[0].token_ids)
