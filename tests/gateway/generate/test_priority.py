"""The field `priority`: what is allowed, and that it reaches the engine's queue."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from service.api.openai.parse import parse_chat
from service.api.parse import RequestContext
from service.errors import InvalidRequest
from service.ipc.data import Arrival
from service.messages.wire import Answer, Ending
from service.replica.replica import Replica
from tests.gateway.conftest import MakeGenerator
from tests.gateway.doubles import CARD, STATS, Scripted
from tests.gateway.engines import EngineGate
from tests.gateway.generate.helpers import ask, body, refused
from tests.gateway.helpers import eventually, over, replica_request_of
from tests.gathered import gathered


@pytest.mark.parametrize(("fields", "priority"), [({}, 5), ({"priority": 0}, 0), ({"priority": 9}, 9)])
async def test_the_priority_reaches_the_replica(fields: dict[str, Any], priority: int) -> None:
    backend = Scripted(Ending("stop", 1, 1, STATS))
    async with over(backend) as http:
        await ask(http, body(**fields))
    assert backend.requests[0].sharing.priority == priority


@pytest.mark.parametrize("wrong", [-1, 10, 1.5, "0", True])
async def test_a_priority_out_of_range_is_refused(generator: Replica, wrong: object) -> None:
    async with over(generator) as http:
        assert (await refused(http, body(priority=wrong)))["param"] == "priority"


def test_openai_bodies_may_have_it() -> None:
    chat = {"model": CARD.name, "messages": [{"role": "user", "content": "x"}], "priority": 2, "n": 2}
    assert [request.sharing.priority for request in parse_chat(chat, RequestContext(CARD, 60.0)).requests] == [2, 2]
    with pytest.raises(InvalidRequest, match="priority is 10"):
        parse_chat(chat | {"priority": 10}, RequestContext(CARD, 60.0))


@pytest.mark.parametrize(("waited_s", "order"), [(0.0, ["urgent", "patient"]), (3600.0, ["patient", "urgent"])])
async def test_the_engine_has_it_and_the_time_waited_so_far(
    make_generator: MakeGenerator, gate: EngineGate, waited_s: float, order: list[str]
) -> None:
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
