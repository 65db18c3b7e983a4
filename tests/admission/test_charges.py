"""The charge to a key for every end of a request: in the queue, at a replica, by the client. Virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from service.admission.charge import TokenCharge
from service.admission.controller import AdmissionController
from service.admission.keys import ApiKey
from service.engine.request import Sharing
from service.errors import MrpServeError, NotReady, OutOfMemory, RateLimited, ReplicaLost
from service.gateway.draining import Draining
from service.gateway.http.bodies import Bodies
from service.gateway.pipeline import RequestPipeline
from service.messages.wire import AnswerStream, Chunk, Ending, ReplicaRequest
from service.routing.failover import FailoverPolicy
from service.settings.settings import Settings
from tests.admission.overload import BLOCK, request
from tests.admission.virtual import run
from tests.gateway.doubles import CARD, STATS

PROMPT = 1
ERRORS: tuple[Exception, ...] = (ReplicaLost("gone"), OutOfMemory("full"), NotReady("none"), RuntimeError("a bug"))


@dataclass
class Replicas:
    """A block a second, up to the limit. `fails_at`: id of a request -> the block at which it fails."""

    fails_at: dict[str, int] = field(default_factory=dict)

    async def stream(self, request: ReplicaRequest) -> AnswerStream:
        for block in range(request.max_new_tokens // BLOCK):
            await asyncio.sleep(1)
            if self.fails_at.get(request.request_id) == block:
                raise ERRORS[block % len(ERRORS)]
            yield Chunk(block, "", (1,) * BLOCK, STATS)
        yield Ending("length", PROMPT, request.max_new_tokens, STATS)

    def note_error(self, error: MrpServeError) -> None:
        pass


@dataclass
class Client:
    """A client: the tokens of its request, those that it received in a stream, and the end, unless it left."""

    tokens: int
    received: int = 0
    ended: bool = False
    error: Exception | None = None

    @property
    def cost(self) -> int:
        """The tokens that it used, or those streamed if the service is at fault. Leaving costs the estimate."""
        if self.error is not None:
            return self.received
        return PROMPT + self.tokens


class SimulatedIngress:
    """An admission controller with replicas. `charged`: the tokens that all requests of the key have cost so far."""

    def __init__(self, slots: int, tokens_per_minute: int = 10**6) -> None:
        self.key = ApiKey("a", b"a", tokens_per_minute=tokens_per_minute)
        self.admission = AdmissionController(
            Settings(max_queue_s=1e6, max_waiting=10**6), asyncio.get_running_loop().time
        )
        self.admission.serves(replace(CARD, slots=slots, max_model_len=10**9))
        self.replicas, self.draining = Replicas(), Draining(Bodies())
        self.pipeline = RequestPipeline(self.replicas, self.admission, self.draining, FailoverPolicy(0))  # type: ignore[arg-type]
        self.count, self.charged, consume_tokens = 0, 0.0, self.admission.limits.consume_tokens

        def consume(tenant: str, tokens: float) -> None:
            self.charged += tokens
            consume_tokens(tenant, tokens)

        self.admission.limits.consume_tokens = consume  # type: ignore[method-assign]

    async def ask(self, client: Client, stream: bool, fails_at: int | None = None, timeout_s: float = 1e6) -> Client:
        """Sends one request and waits for its end, of any kind."""
        self.count += 1
        if fails_at is not None:
            self.replicas.fails_at[str(self.count)] = fails_at
        replica_request = request(self.count, client.tokens // BLOCK, timeout_s, sharing=Sharing(self.key.name))
        charge = self.admission.admit(self.key, [replica_request])
        with suppress(asyncio.CancelledError):
            try:
                await (self._stream if stream else self._complete)(replica_request, charge, client)
                client.ended = True
            except Exception as error:  # noqa: BLE001 - the client gets any error
                client.error = error
        return client

    async def _complete(self, request: ReplicaRequest, charge: TokenCharge, client: Client) -> None:
        await self.pipeline.complete(structs.replace(request, stream_interval=16), charge)

    async def _stream(self, request: ReplicaRequest, charge: TokenCharge, client: Client) -> None:
        async with aclosing(self.pipeline.stream(request, charge)) as items:
            async for item in items:
                client.received += len(item.token_ids) if isinstance(item, Chunk) else 0


def with_ingress(slots: int, script: Callable[[SimulatedIngress], Awaitable[object]], **key: int) -> None:
    async def main() -> None:
        await script(SimulatedIngress(slots, **key))

    run(main())


both = pytest.mark.parametrize("stream", [False, True])


class TestQueuedRequests:
    @both
    def test_a_rejected_request_costs_nothing(self, stream: bool) -> None:
        async def script(ingress: SimulatedIngress) -> None:
            task = asyncio.ensure_future(ingress.ask(Client(40), stream))
            await asyncio.sleep(1)
            assert ingress.charged == PROMPT + 40
            ingress.admission.reject_waiting(NotReady("given up"))
            assert isinstance((await task).error, NotReady)
            assert ingress.charged == 0

        with_ingress(0, script)


@both
def test_failed_requests_use_no_limit(stream: bool) -> None:
    """A key of 1,000 tokens a minute: any number of requests of 497 may fail, two may be answered."""

    async def script(ingress: SimulatedIngress) -> None:
        for _ in range(5):
            assert (await ingress.ask(Client(496), stream, fails_at=0)).error is not None
        task = [asyncio.ensure_future(ingress.ask(Client(496), stream)) for _ in range(2)]
        await asyncio.sleep(1)
        with pytest.raises(RateLimited):
            await ingress.ask(Client(496), stream)
        assert all(client.ended for client in await asyncio.gather(*task))

    with_ingress(4, script, tokens_per_minute=1000)


requests = st.lists(
    st.tuples(
        st.floats(0, 20),  # comes
        st.integers(1, 8),  # blocks
        st.booleans(),  # as a stream
        st.one_of(st.none(), st.integers(0, 7)),  # fails at this block
        st.one_of(st.none(), st.floats(0, 12)),  # is left so much later
        st.floats(0.1, 30),  # waits at most
    ),
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(requests, st.integers(1, 4))
def test_a_key_pays_for_received_and_for_abandoned_tokens(plan: list[Any], slots: int) -> None:
    async def script(ingress: SimulatedIngress) -> None:
        async def later(
            comes: float, blocks: int, stream: bool, fails_at: int | None, leaves: float | None, timeout_s: float
        ) -> Client:
            await asyncio.sleep(comes)
            task = asyncio.ensure_future(ingress.ask(Client(blocks * BLOCK), stream, fails_at, timeout_s))
            if leaves is not None:
                asyncio.get_running_loop().call_later(leaves, task.cancel)
            return await task

        clients = await asyncio.gather(*(later(*row) for row in plan))
        assert ingress.charged == sum(client.cost for client in clients)

    with_ingress(slots, script)
