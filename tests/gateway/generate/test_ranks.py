"""A replica whose model two processes hold: its answers are those of one process, and one that dies is its end."""

from __future__ import annotations

import os
import signal
from contextlib import aclosing

from service.api.generate import parse_generate_request
from service.api.parse import RequestContext
from service.messages.wire import Chunk, Items, ReplicaRequest
from service.replica.replica import Replica
from service.routing.failover import FailoverPolicy
from service.settings.settings import Settings
from tests.gateway.conftest import UNMEASURED
from tests.gateway.doubles import free, pipeline
from tests.gateway.generate.helpers import ask, body, essence
from tests.gateway.helpers import over
from tests.gateway.local import LocalBackend
from tests.replicas import load_replica

#: with fixed drafts: `auto` drafts by what its engine has seen before
PLANS = ({"mode": "static"}, {"mode": "speculative", "mrp_steps": 2}, {"mode": "remask"})


class ThenElsewhere(LocalBackend):
    """First attempts go to one replica, the others to another."""

    def __init__(self, first: Replica, other: Replica) -> None:
        super().__init__(first)
        self._other = LocalBackend(other)

    async def stream(self, request: ReplicaRequest) -> Items:
        backend = super() if not request.attempt else self._other
        async with aclosing(backend.stream(request)) as items:
            async for item in items:
                yield item


async def test_a_replica_of_two_ranks(settings: Settings, generator: Replica) -> None:
    pair = load_replica("pair", settings.model_copy(update={"tensor_parallel_size": 2}), UNMEASURED)
    try:
        (rank,) = pair._engine._core.ranks.pids  # type: ignore[union-attr]
        requests = [body(**plan, max_new_tokens=24, temperature=0.9, seed=3, ignore_eos=True) for plan in PLANS]
        async with over(pair) as http, over(generator) as alone:
            for request in requests:
                assert essence(await ask(http, request)) == essence(await ask(alone, request))
        assert pair.status().failure is None

        again: list[str] = []
        wanted = body(max_new_tokens=160, temperature=0.7, seed=1, ignore_eos=True, stream=True)
        policy = FailoverPolicy(3, lambda error: again.append(error.code))
        [replica_request] = parse_generate_request(wanted, RequestContext(pair.status().card, 60.0)).requests
        tokens: list[int] = []
        answers = pipeline(ThenElsewhere(pair, generator), policy)
        async with aclosing(answers.stream(replica_request, free())) as items:
            async for item in items:
                if isinstance(item, Chunk):
                    if not tokens:
                        os.kill(rank, signal.SIGKILL)
                    tokens += item.token_ids
        assert again == ["replica_lost"]
        whole = [item async for item in LocalBackend(generator).stream(replica_request)]
        assert tokens == [token for item in whole if isinstance(item, Chunk) for token in item.token_ids]
        assert pair.status().failure == "the process of rank 1 has ended"
    finally:
        pair.close()
