"""How late an event loop is beside an engine."""

from __future__ import annotations

import gc
import sys

import pytest

from benchmarks.host import Delays, loop_delays
from benchmarks.steps import HOST_COSTS
from service.decode.modes import Speculative, Static
from service.ipc.connections import tune_interpreter
from tests.tiny import tiny_checkpoint


def test_delays_in_milliseconds_in_their_order() -> None:
    assert Delays.from_seconds([0.003, 0.001, 0.002]) == Delays(3, 2.0, 2.0, 3.0)
    assert Delays.from_seconds([0.004]) == Delays(1, 4.0, 4.0, 4.0)


@pytest.mark.parametrize("mode", [Static(), Speculative(1, 4)])
def test_a_loop_is_watched_while_requests_decode(mode) -> None:
    found = loop_delays(tiny_checkpoint(0), 3, mode, 0.05, HOST_COSTS)
    assert found.beats > 0
    assert 0 <= found.median <= found.p99 <= found.most


def test_collections_leave_out_what_there_is_and_threads_share_python(monkeypatch) -> None:
    kept = list[str]()
    monkeypatch.setattr(gc, "freeze", lambda: kept.append("all"))
    before, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(0.005)  # Python's own values, which another test may have changed
    gc.set_threshold(700, 10, 10)
    try:
        tune_interpreter()
        assert kept == ["all"]
        assert sys.getswitchinterval() < 0.005
        assert gc.get_threshold()[:2] == (700, 10)
        assert gc.get_threshold()[2] > 10
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*thresholds)
