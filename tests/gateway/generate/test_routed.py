"""Two replicas behind the real router: sessions over HTTP, and metrics while both replicas are full."""

import asyncio
from contextlib import aclosing
from itertools import count

from service.messages.replica_status import Snapshot, Status
from service.messages.wire import ReplicaRequest, ReplicaStream
from service.replica.replica import Replica
from service.routing.router import Router
from tests.gateway import apis
from tests.gateway.apis import APIS
from tests.gateway.engines import EngineGate
from tests.gateway.generate.helpers import ask, body
from tests.gateway.helpers import eventually, over, page
from tests.gateway.local import LocalBackend


class Routed(LocalBackend):
    """Replicas that a router chooses from. `chosen`: the names of the replicas, in the order of the requests."""

    def __init__(self, *replicas: Replica) -> None:
        self.replicas = {replica.status().replica: replica for replica in replicas}
        self.router = Router(slack=1, by_prefix=True, on_route=lambda _: None)
        self.router.inflight.set_replicas(self.replicas)
        self.chosen: list[str] = []

    async def stream(self, request: ReplicaRequest) -> ReplicaStream:
        name = self.router.choose(request)
        assert name is not None
        self.chosen.append(name)
        try:
            async with aclosing(self.replicas[name].stream(request)) as items:
                async for item in items:
                    yield item
        finally:
            self.router.inflight.end(name)

    async def statuses(self) -> list[Status]:
        return [replica.status() for replica in self.replicas.values()]

    async def snapshots(self, ingress: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        return [ingress], [replica.snapshot() for replica in self.replicas.values()]


class TestSessions:
    async def test_prompt_cache_key_keeps_one_replica_on_all_apis(self, generator, other):
        """No two prompts have anything in common. Some sessions are at one replica, some at the other."""
        backend, homes, word = Routed(generator, other), list[str](), count(20)
        async with over(backend, served_model_name="golden") as http:
            for session in "abcdef":
                for api in APIS:
                    text = f"w{next(word)} " * 80
                    await apis.ask(http, api.path, api.body(text, prompt_cache_key=session, **{api.limit: 1}))
                [home] = set(backend.chosen[-len(APIS) :])
                homes.append(home)
        assert set(homes) == {"r0", "r1"}

    async def test_without_a_key_such_prompts_are_spread(self, generator, other):
        backend = Routed(generator, other)
        async with over(backend) as http:
            for number in range(12):
                await ask(http, body(prompt_token_ids=[number + 5] * 80, max_new_tokens=1))
        assert len(set(backend.chosen)) == 2


class TestFullReplicas:
    async def test_metrics_are_answered_and_count_what_waits_where(self, make_generator, gate):
        """Each replica decodes one request and has one in its engine's queue; three wait at the ingress."""
        gates = gate, EngineGate()
        names = zip(("r0", "r1"), gates, strict=True)
        replicas = [make_generator(name, deps=held.deps, max_num_seqs=1) for name, held in names]
        async with over(Routed(*replicas)) as http:
            tasks = [asyncio.ensure_future(ask(http, body(prompt_token_ids=[n + 5] * 80))) for n in range(7)]
            for held, replica in zip(gates, replicas, strict=True):
                await eventually(lambda replica=replica: replica.snapshot().in_flight == 2)
                await held.holds()
                held.let(1)
                await held.holds(before=2)  # the engine takes the other request between two steps
            metrics = await page(http)
            for name in ("r0", "r1"):
                assert metrics("mrp_num_requests_running", replica=name) == 1
                assert metrics("mrp_num_requests_waiting", replica=name) == 1
                assert metrics("mrp_kv_cache_usage_perc", replica=name) > 0
            assert metrics("mrp_num_requests_waiting", replica="queue") == 3
            assert metrics("mrp_request_success_total") == 0
            for held in gates:
                held.release()
            answers = await asyncio.gather(*tasks)
            metrics = await page(http)
        assert metrics("mrp_num_requests_waiting") == metrics("mrp_num_requests_running") == 0
        assert metrics("mrp_request_success_total") == len(answers) == 7
