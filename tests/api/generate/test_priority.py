"""The field `priority`: what is allowed, and that it reaches the engine's queue."""

from __future__ import annotations

from typing import Any

import pytest

from service.api.generator import Generator
from service.api.openai.convert import plan_chat
from service.api.wire import Ending
from service.errors import InvalidRequest
from tests.api.conftest import MakeGenerator
from tests.api.doubles import CARD, STATS, Scripted
from tests.api.generate.helpers import ask, body, refused
from tests.api.helpers import over


@pytest.mark.parametrize(("given", "priority"), [({}, 5), ({"priority": 0}, 0), ({"priority": 9}, 9)])
async def test_is_handed_on(given: dict[str, Any], priority: int) -> None:
    backend = Scripted(Ending("stop", 1, 1, STATS))
    async with over(backend) as http:
        await ask(http, body(**given))
    assert backend.works[0].priority == priority


@pytest.mark.parametrize("wrong", [-1, 10, 1.5, "0", True])
async def test_what_is_allowed(generator: Generator, wrong: object) -> None:
    async with over(generator) as http:
        assert (await refused(http, body(priority=wrong)))["param"] == "priority"


def test_openai_bodies_may_have_it() -> None:
    chat = {"model": CARD.name, "messages": [{"role": "user", "content": "x"}], "priority": 2, "n": 2}
    assert [choice.work.priority for choice in plan_chat(chat, CARD, 60.0).choices] == [2, 2]
    with pytest.raises(InvalidRequest, match="priority is 10"):
        plan_chat(chat | {"priority": 10}, CARD, 60.0)


async def test_the_engine_has_it(make_generator: MakeGenerator) -> None:
    generator = make_generator()
    engine, asked = generator._worker._engine, []
    submit = engine.submit
    engine.submit = lambda request: (asked.append(request), submit(request))  # type: ignore[assignment, return-value]
    async with over(generator) as http:
        await ask(http, body(priority=1))
    assert asked[0].priority == 1
    assert asked[0].waited_s >= 0
