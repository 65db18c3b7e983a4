"""The charge to a key for every end of a request: in the queue, at a replica, by the client. Virtual time."""

from __future__ import annotations

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
from service.admission.controller import AdmissionController, IncomingRequest
from service.admission.keys import ApiKey
from service.engine.request import Sharing
from service.errors import DeadlineExceeded, MrpServeError, NotReady, OutOfMemory, RateLimited, ReplicaLost
from service.gateway.draining import Draining
from service.gateway.pipeline import RequestPipeline
from service.messages.wire import Answering, Chunk, Ending, ReplicaRequest
from service.routing.failover import FailoverPolicy
from service.settings.settings import Settings
from tests.admission.overload import BLOCK, request
from tests.admission.virtual import run
from tests.gateway.doubles import CARD, STATS

PROMPT = 1
ERRORS: tuple[Exception, ...] = (ReplicaLost("gone"), OutOfMemory("full"), NotReady("none"), RuntimeError("a bug"))


@dataclass
class Replicas:
    """A block a second, all that is asked for; some requests fail instead of a block. Id of a request -> block."""

    fails_at: dict[str, int] = field(default_factory=dict)

    async def stream(self, request: ReplicaRequest) -> Answering:
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
    """What a client asked for and got: tokens of a stream, and its end. A client that left has neither."""

    asked: int
    got: int = 0
    ended: bool = False
    error: Exception | None = None

    @property
    def owes(self) -> int:
        """What it used, or what was streamed if the service is at fault. Who leaves pays the estimate."""
        if self.error is not None:
            return self.got
        return PROMPT + self.asked


class Shop:
    """An admission controller with replicas. `paid`: what all requests of a key have cost so far."""

    def __init__(self, slots: int, tokens_per_minute: int = 10**6) -> None:
        self.key = ApiKey("a", b"a", tokens_per_minute=tokens_per_minute)
        self.door = AdmissionController(Settings(max_queue_s=1e6, max_waiting=10**6), asyncio.get_running_loop().time)
        self.door.serves(replace(CARD, slots=slots, max_model_len=10**9))
        self.replicas, self.draining = Replicas(), Draining()
        self.answers = RequestPipeline(self.replicas, self.door, self.draining, FailoverPolicy(0))  # type: ignore[arg-type]
        self.count, self.paid, take = 0, 0.0, self.door._limits.consume_tokens

        def took(tenant: str, tokens: float) -> None:
            self.paid += tokens
            take(tenant, tokens)

        self.door._limits.consume_tokens = took  # type: ignore[method-assign]

    def charge(self) -> TokenCharge:
        """Of a request that nobody pays."""
        return TokenCharge(lambda _: None)

    async def ask(self, client: Client, stream: bool, fails_at: int | None = None, timeout_s: float = 1e6) -> Client:
        """Sends one request and waits for its end, of any kind."""
        self.count += 1
        if fails_at is not None:
            self.replicas.fails_at[str(self.count)] = fails_at
        asked = request(self.count, client.asked // BLOCK, timeout_s, sharing=Sharing(self.key.name))
        charge = self.door.admit(IncomingRequest(self.key, "", "", b""), [asked])
        with suppress(asyncio.CancelledError):
            try:
                await (self._stream if stream else self._complete)(asked, charge, client)
                client.ended = True
            except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
                client.error = error
        return client

    async def _complete(self, request: ReplicaRequest, charge: TokenCharge, client: Client) -> None:
        await self.answers.complete(structs.replace(request, together=16), charge)

    async def _stream(self, request: ReplicaRequest, charge: TokenCharge, client: Client) -> None:
        async with aclosing(self.answers.stream(request, charge)) as items:
            async for item in items:
                client.got += len(item.token_ids) if isinstance(item, Chunk) else 0


def in_shop(slots: int, script: Callable[[Shop], Awaitable[object]], **key: int) -> None:
    async def main() -> None:
        await script(Shop(slots, **key))

    run(main())


both = pytest.mark.parametrize("stream", [False, True])


class TestInTheQueue:
    @both
    def test_the_deadline(self, stream: bool) -> None:
        async def script(shop: Shop) -> None:
            client = await shop.ask(Client(40), stream, timeout_s=5)
            assert isinstance(client.error, DeadlineExceeded)
            assert shop.paid == 0

        in_shop(0, script)

    @both
    def test_no_replica_will_come(self, stream: bool) -> None:
        async def script(shop: Shop) -> None:
            asking = asyncio.ensure_future(shop.ask(Client(40), stream))
            await asyncio.sleep(1)
            assert shop.paid == PROMPT + 40
            shop.door.reject_all(NotReady("given up"))
            assert isinstance((await asking).error, NotReady)
            assert shop.paid == 0

        in_shop(0, script)

    @both
    def test_who_leaves_it_pays_the_estimate(self, stream: bool) -> None:
        async def script(shop: Shop) -> None:
            asking = asyncio.ensure_future(shop.ask(Client(40), stream))
            await asyncio.sleep(1)
            asking.cancel()
            assert not (await asking).ended
            assert shop.paid == PROMPT + 40

        in_shop(0, script)


@both
def test_requests_that_fail_use_up_no_limit(stream: bool) -> None:
    """A key of 1,000 tokens a minute: any number of requests of 497 may fail, two may be answered."""

    async def script(shop: Shop) -> None:
        for _ in range(5):
            assert (await shop.ask(Client(496), stream, fails_at=0)).error is not None
        asking = [asyncio.ensure_future(shop.ask(Client(496), stream)) for _ in range(2)]
        await asyncio.sleep(1)
        with pytest.raises(RateLimited):
            await shop.ask(Client(496), stream)
        assert all(client.ended for client in await asyncio.gather(*asking))

    in_shop(4, script, tokens_per_minute=1000)


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
def test_a_key_pays_for_what_it_got_and_for_what_it_left(plan: list[Any], slots: int) -> None:
    async def script(shop: Shop) -> None:
        async def later(
            comes: float, blocks: int, stream: bool, fails_at: int | None, leaves: float | None, timeout_s: float
        ) -> Client:
            await asyncio.sleep(comes)
            asking = asyncio.ensure_future(shop.ask(Client(blocks * BLOCK), stream, fails_at, timeout_s))
            if leaves is not None:
                asyncio.get_running_loop().call_later(leaves, asking.cancel)
            return await asking

        clients = await asyncio.gather(*(later(*one) for one in plan))
        assert shop.paid == sum(client.owes for client in clients)

    in_shop(slots, script)
