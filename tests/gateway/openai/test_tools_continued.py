"""Streams with calls that another replica continues: equal to the undisturbed ones, but for the ids of calls."""

from __future__ import annotations

from typing import Any

import pytest

from service.replica.replica import Replica
from tests.gateway.doubles import Dying
from tests.gateway.helpers import over
from tests.gateway.openai.helpers import CHAT, ask, chat, frames
from tests.gateway.openai.test_continued import by_choice, essence
from tests.gateway.openai.test_tools import NAMED, TOOLS

BODIES = [
    chat("12+5", max_tokens=120, tools=TOOLS, tool_choice=NAMED, temperature=1, seed=3, mode="static"),
    chat("12+5", max_tokens=120, tools=TOOLS, temperature=1, seed=1, mode="speculative", mrp_steps=2),
]


@pytest.mark.parametrize("body", BODIES)
async def test_streams_cut_after_every_block(caller: Replica, other_caller: Replica, body: dict[str, Any]) -> None:
    async with over(other_caller) as http:
        whole = by_choice(await frames(http, CHAT, body))
        told = essence(await ask(http, CHAT, body))
    assert all(frames[-1]["choices"][0]["finish_reason"] == "tool_calls" for frames in whole.values())
    for after in range(30):
        backend = Dying(caller, other_caller, after)
        async with over(backend) as http:
            assert by_choice(await frames(http, CHAT, body)) == whole, after
        if len(backend.requests) == len(whole):
            break
    assert after >= 5
    async with over(Dying(caller, other_caller, after=0)) as http:
        assert essence(await ask(http, CHAT, body)) == told
