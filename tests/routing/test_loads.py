"""The replicas' loads as one process knows them, with a clock that the test sets."""

from __future__ import annotations

import pytest

from service.routing.loads import InflightCounts
from tests.clock import Clock


@pytest.fixture
def inflight(clock: Clock) -> InflightCounts:
    counts = InflightCounts(clock)
    counts.set_replicas(["a", "b"])
    return counts


def test_requests_of_this_ingress_count_from_the_choice_to_the_end(inflight: InflightCounts, clock: Clock) -> None:
    inflight.add("a")
    clock.now = 1000.0
    assert inflight.now() == {"a": 1, "b": 0}
    inflight.end("a")
    inflight.end("a")
    assert inflight.now() == {"a": 0, "b": 0}


def test_requests_of_other_ingresses_are_believed_for_a_while(inflight: InflightCounts, clock: Clock) -> None:
    inflight.add("a")
    inflight.set_others("a", 7)
    assert inflight.now()["a"] == 8
    inflight.end("a")
    assert inflight.now()["a"] == 7
    clock.now = 4.9
    assert inflight.now()["a"] == 7
    clock.now = 5.1
    assert inflight.now()["a"] == 0, "else a replica that looks busy would never be asked again"


def test_replicas_come_and_go(inflight: InflightCounts) -> None:
    inflight.add("a")
    inflight.remove("b")
    for name in ("b", "unknown"):
        inflight.add(name)
        inflight.end(name)
        inflight.set_others(name, 3)
    assert inflight.now() == {"a": 1}
    inflight.set_replicas(["a", "c"])
    assert inflight.now() == {"a": 1, "c": 0}
