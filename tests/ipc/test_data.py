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
