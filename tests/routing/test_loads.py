"""What a process knows of the replicas' loads, in given time."""

from __future__ import annotations

import pytest

from service.routing.loads import Loads
from tests.clock import Clock


@pytest.fixture
def loads(clock: Clock) -> Loads:
    made = Loads(clock)
    made.set_replicas(["a", "b"])
    return made


def sent(loads: Loads, name: str, requests: int) -> None:
    loads.chosen(name)
    loads.reported(name, requests)
    loads.took(name)


def test_own_requests_count_from_the_choice_to_the_end(loads: Loads, clock: Clock) -> None:
    loads.chosen("a")
    assert loads.now() == {"a": 1, "b": 0}
    loads.reported("a", 1)
    loads.took("a")
    clock.now = 1000.0
    assert loads.now() == {"a": 1, "b": 0}
    loads.ended("a")
    loads.ended("a")
    assert loads.now() == {"a": 0, "b": 0}


def test_requests_of_other_ingresses_are_believed_for_a_while(loads: Loads, clock: Clock) -> None:
    sent(loads, "a", 8)
    assert loads.now()["a"] == 8
    loads.ended("a")
    assert loads.now()["a"] == 7
    clock.now = 4.9
    assert loads.now()["a"] == 7
    clock.now = 5.1
    assert loads.now()["a"] == 0, "else a replica that looks busy would never be asked again"


def test_a_replica_that_was_chosen_and_never_asked_is_not_busy_for_ever(loads: Loads, clock: Clock) -> None:
    loads.chosen("a")
    loads.chosen("a")
    loads.reported("a", 1)
    loads.took("a")
    assert loads.now()["a"] == 2
    clock.now = 2.1
    assert loads.now()["a"] == 1


def test_an_end_that_the_replica_did_not_know_of_is_no_request_of_others_for_long(loads: Loads, clock: Clock) -> None:
    sent(loads, "a", 1)
    loads.chosen("a")
    loads.ended("a")  # between the replica's word and its arrival here
    loads.reported("a", 2)
    loads.took("a")
    assert loads.now()["a"] == 2
    loads.ended("a")
    clock.now = 5.1
    assert loads.now()["a"] == 0


def test_replicas_come_and_go(loads: Loads) -> None:
    sent(loads, "a", 1)
    loads.remove("b")
    for name in ("b", "unknown"):
        loads.ended(name)
        sent(loads, name, 3)
    assert loads.now() == {"a": 1}
    loads.set_replicas(["a", "c"])
    assert loads.now() == {"a": 1, "c": 0}
