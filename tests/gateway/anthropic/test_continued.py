"""Anthropic's streams and answers that another replica continues: equal to the undisturbed ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from service.model import Checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.anthropic.helpers import ask, essence, events, message
from tests.gateway.conftest import UNMEASURED
from tests.gateway.doubles import Dying
from tests.gateway.helpers import over
from tests.replicas import local_generator

BODIES = [
    message(max_tokens=24, mode="static", temperature=0.9, seed=4, ignore_eos=True),
    message("w5 w6", max_tokens=24, mode="speculative", mrp_steps=2, seed=2, return_trace=True),
    message(" ".join(["w5"] * 2020), max_tokens=9000, mode="static", seed=1, ignore_eos=True),
]


@pytest.fixture(scope="module")
def other(settings: Settings, checkpoint: Checkpoint) -> Iterator[Replica]:
    generator = local_generator("r1", checkpoint, settings, deps=UNMEASURED)
    yield generator
    generator.close()


@pytest.mark.parametrize("body", BODIES)
async def test_streams_cut_after_every_block(generator: Replica, other: Replica, body: dict[str, Any]) -> None:
    async with over(other) as http:
        undisturbed, whole = essence(await events(http, body)), essence(await ask(http, body))
    for after in range(9):
        backend = Dying(generator, other, after)
        async with over(backend) as http:
            assert essence(await events(http, body)) == undisturbed, after
        if len(backend.requests) == 1:
            break
    assert after > 2
    async with over(Dying(generator, other, 0)) as http:
        assert essence(await ask(http, body)) == whole
