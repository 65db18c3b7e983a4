"""The router of one ingress: counts, prefixes, further attempts, replicas that come and go, loads that expire."""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from service.decode.modes import Static
from service.engine.request import SamplingParams
from service.ipc.data import Arrival
from service.messages.wire import ReplicaRequest
from service.routing.affinity import RoutingReason
from service.routing.router import InflightCounts, Router
from tests.clock import Clock

PROMPT = "word " * 100


def request(text: str, attempt: int = 0) -> ReplicaRequest:
    return ReplicaRequest("id", Static(), SamplingParams(), 4, 60.0, Arrival.now(), text=text, attempt=attempt)


@pytest.fixture
def routed() -> list[RoutingReason]:
    return []


@pytest.fixture
def router(clock: Clock, routed: list[RoutingReason]) -> Router:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "Random", partial(random.Random, 1))  # the same draws in every run
        made = Router(2, by_prefix=True, on_route=routed.append, clock=clock)
    made.inflight.set_replicas(["a", "b", "c"])
    return made


def test_without_replicas_none_is_chosen(clock: Clock) -> None:
    router = Router(2, by_prefix=True, on_route=lambda reason: None, clock=clock)
    assert router.choose(request(PROMPT)) is None
    router.inflight.set_replicas(["a"])
    assert router.choose(request(PROMPT)) == "a"
    router.inflight.remove("a")
    assert router.choose(request(PROMPT)) is None


def test_a_prefix_stays_where_it_is_until_its_replica_is_overloaded(
    router: Router, routed: list[RoutingReason]
) -> None:
    home = router.choose(request(PROMPT))
    assert [router.choose(request(PROMPT + "more")) for _ in range(2)] == [home] * 2
    assert routed == ["load", "prefix", "prefix"]
    assert {router.choose(request(PROMPT)) for _ in range(8)} > {home}
    assert "overloaded" in routed


def test_one_replica_is_chosen_before_its_prefixes_are_learned(clock: Clock, routed: list[RoutingReason]) -> None:
    waiting: list[Callable[[], object]] = []
    router = Router(2, by_prefix=True, on_route=routed.append, clock=clock, later=waiting.append)
    router.inflight.set_replicas(["a"])
    assert [router.choose(request(PROMPT)) for _ in range(2)] == ["a", "a"]
    assert routed == []
    while waiting:
        waiting.pop(0)()
    assert routed == ["load", "prefix"]
    for _ in range(2):
        router.inflight.end("a")
    router.inflight.set_replicas(["a", "b", "c"])
    assert router.choose(request(PROMPT)) == "a"
    assert routed[2:] == ["prefix"]
    assert not waiting


def test_a_further_attempt_goes_by_load(router: Router, routed: list[RoutingReason]) -> None:
    router.choose(request(PROMPT))
    names = {router.choose(request(PROMPT, attempt=1)) for _ in range(60)}  # each draws two of the three at random
    assert len(names) == 3
    assert len(routed) == 1


def test_by_load_the_requests_spread_and_no_reason_is_reported(clock: Clock, routed: list[RoutingReason]) -> None:
    router = Router(2, by_prefix=False, on_route=routed.append, clock=clock)
    router.inflight.set_replicas(["a", "b", "c", "d"])
    counts = Counter(router.choose(request(PROMPT)) for _ in range(400))
    assert max(counts.values()) - min(counts.values()) <= 8
    assert routed == []


@pytest.fixture
def inflight(clock: Clock) -> InflightCounts:
    counts = InflightCounts(clock)
    counts.set_replicas(["a", "b"])
    return counts


def test_requests_of_other_ingresses_are_believed_for_a_while(inflight: InflightCounts, clock: Clock) -> None:
    inflight.add("a")
    inflight.set_others("a", 7)
    assert inflight.now()["a"] == 8
    inflight.end("a")
    assert inflight.now()["a"] == 7
    clock.now = 4.9
    assert inflight.now()["a"] == 7
    clock.now = 5.1
    assert inflight.now()["a"] == 0, "a replica that looks busy would never get a request again"
