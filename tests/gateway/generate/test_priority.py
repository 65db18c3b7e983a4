"""The field `priority`: what is allowed, and that it reaches the engine's queue."""

import asyncio

import pytest
from msgspec.structs import replace

from service.ipc.data import Arrival
from service.messages.wire import Answer
from tests.gateway.generate.helpers import body
from tests.gateway.helpers import eventually, replica_request_of
from tests.gathered import gathered


@pytest.mark.parametrize(("waited_s", "order"), [(0.0, ["urgent", "patient"]), (3600.0, ["patient", "urgent"])])
async def test_the_engine_has_it_and_the_time_waited_so_far(make_generator, gate, waited_s, order):
    """One request is decoded at a time. A request that has waited long goes before a more urgent one."""
    ended: list[str] = []
    generator = make_generator(deps=gate.deps, max_num_seqs=1)

    async def complete(name: str, priority: int, waited_s: float = 0.0) -> None:
        request = replica_request_of(generator.status().card, body(priority=priority), timeout_limit_s=7200.0)
        assert isinstance(await gathered(generator.stream(replace(request, arrived=Arrival.ago(waited_s)))), Answer)
        ended.append(name)

    first = asyncio.ensure_future(complete("first", 0))
    await gate.holds()
    tasks = [asyncio.ensure_future(complete("patient", 9, waited_s)), asyncio.ensure_future(complete("urgent", 1))]
    await eventually(lambda: generator.snapshot().in_flight == 3)
    gate.release()
    await asyncio.gather(first, *tasks)
    assert ended == ["first", *order]
