"""The wait of a request in processes with different clocks."""

from __future__ import annotations

import pytest

from service.ipc import data
from service.ipc.data import Arrival
from service.ipc.messagepack import MessagePack
from tests.clock import Clock

CODEC = MessagePack(Arrival)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The monotonic clock of the process that code under test runs in."""
    clock = Clock()
    monkeypatch.setattr(data.time, "monotonic", clock)
    return clock


@pytest.mark.parametrize("others", [0.0, 5_000_000.0], ids=["behind", "ahead"])
def test_the_wait_goes_on_where_it_was_when_it_was_sent(clock: Clock, others: float) -> None:
    clock.now = 1000.0
    came = Arrival.now()
    clock.now += 7.0
    sent = CODEC.content([CODEC.encode(came)])
    clock.now = others
    [received] = CODEC.decode(sent)
    assert received.waited_s() == 7.0
    clock.now += 2.0
    assert received.waited_s() == 9.0


def test_a_request_that_is_sent_again_has_waited_since_it_came(clock: Clock) -> None:
    """A further attempt sends the same arrival, later."""
    came = Arrival.now()
    waits = []
    for _ in range(2):
        clock.now += 3.0
        [received] = CODEC.decode(CODEC.content([CODEC.encode(came)]))
        waits.append(received.waited_s())
    assert waits == [3.0, 6.0]


def test_ago(clock: Clock) -> None:
    clock.now = 100.0
    assert Arrival.ago(40.0) == Arrival(60.0)
    assert Arrival.ago(40.0).waited_s() == 40.0
