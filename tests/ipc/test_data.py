"""The wait of a request in processes with different clocks."""

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


@pytest.mark.parametrize("receiver_s", [0.0, 5_000_000.0], ids=["behind", "ahead"])
def test_the_wait_continues_at_the_receiver(clock: Clock, receiver_s: float) -> None:
    clock.now = 1000.0
    arrival = Arrival.now()
    clock.now += 7.0
    sent = CODEC.content([CODEC.encode(arrival)])
    clock.now = receiver_s
    [received] = CODEC.decode(sent)
    assert received.waited_s() == 7.0
    clock.now += 2.0
    assert received.waited_s() == 9.0


def test_a_request_sent_again_has_waited_since_its_arrival(clock: Clock) -> None:
    """A further attempt sends the same arrival, later."""
    arrival = Arrival.now()
    waits = []
    for _ in range(2):
        clock.now += 3.0
        [received] = CODEC.decode(CODEC.content([CODEC.encode(arrival)]))
        waits.append(received.waited_s())
    assert waits == [3.0, 6.0]


def test_an_arrival_some_seconds_ago(clock: Clock) -> None:
    clock.now = 100.0
    assert Arrival.ago(40.0) == Arrival(60.0)
    assert Arrival.ago(40.0).waited_s() == 40.0
