"""A replica on a node whose wall clock differs from that of the ingress."""

from __future__ import annotations

import time

import pytest

from service.decode.modes import Static
from service.engine.request import SamplingParams
from service.ipc.data import Arrival
from service.messages.wire import Answer, ReplicaRequest
from tests.gateway.conftest import MakeGenerator
from tests.gateway.generate.helpers import PROMPT
from tests.gateway.helpers import read
from tests.gathered import gathered

WAITED_S = 2.0


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
async def test_no_time_limit_and_no_statistic_depends_on_it(
    make_generator: MakeGenerator, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead)
    generator, began = make_generator(), time.monotonic()
    arrived = Arrival.ago(WAITED_S)
    request = ReplicaRequest("r", Static(), SamplingParams(), 16, 60.0, arrived, token_ids=tuple(PROMPT))
    answer = await gathered(generator.stream(request))
    most_s = WAITED_S + time.monotonic() - began
    assert isinstance(answer, Answer)
    stats = answer.ending.stats
    assert WAITED_S <= stats.queue_s <= (stats.first_block_s or 0) <= stats.total_s <= most_s
    assert WAITED_S <= read(generator.snapshot().families, "mrp_request_queue_time_seconds_sum") <= most_s
