"""The engine alone, with the requests of the service, and the conclusion from both."""

import argparse
import itertools
import json
from types import SimpleNamespace

import pytest

from loadtest.overhead import alone as engine_alone
from loadtest.overhead.__main__ import Measured, _cpu, conclude, workload
from loadtest.overhead.alone import Alone, Lone
from loadtest.overhead.cpu import PARTS, CpuTime
from service.engine import Engine

ARGUMENTS = argparse.Namespace(mode="static", threads=1, concurrency=4, short=8, seed=17, ratio=0.9, more_ms=3.0)


def test_the_engine_alone_takes_the_bodies_of_requests(monkeypatch):
    """By a clock that a step of the engine moves by 10 ms: tokens of static come one a step and request."""
    now, step = 0.0, Engine.step

    def timed_step(engine):
        nonlocal now
        now += 0.010
        return step(engine)

    monkeypatch.setattr(Engine, "step", timed_step)
    monkeypatch.setattr(engine_alone, "WARM_S", 0.1)
    monkeypatch.setattr(engine_alone, "time", SimpleNamespace(perf_counter=lambda: now))
    alone = Alone(None, threads=1, max_running=8)
    bodies = (workload(ARGUMENTS, "fixed:16").request(number).body for number in itertools.count())
    # blocks lie across the two ends of the window
    assert alone.tokens_per_s(bodies, together=4, seconds=0.4) == pytest.approx(4 / 0.010, rel=0.2)
    body = next(bodies)
    assert alone.seconds(body) == pytest.approx(body["max_new_tokens"] * 0.010, abs=0.011)


@pytest.mark.parametrize(("http", "lone_s", "broken"), [(95.0, 0.012, 0), (85.0, 0.014, 3)])
def test_limits_decide(capsys, http, lone_s, broken):
    rates = {kind: [(100.0, http)] * 3 for kind in ("whole", "stream")}
    measured = Measured(rates, [Lone(0.010, lone_s, 0.011)] * 5)
    status = conclude(ARGUMENTS, measured)
    result = json.loads(capsys.readouterr().out)
    assert (status, len(result["broken"])) == (int(broken > 0), broken)
    assert (result["ratio_whole"], result["ratio_stream"]) == (http / 100, http / 100)
    assert result["lone_more_p50_ms"] == pytest.approx(1000 * (lone_s - 0.010))
    assert (result["lone_alone_p50_ms"], result["lone_over_http_p99_ms"]) == (10, 1000 * lone_s)


def test_cpu_time_of_a_request_leaves_out_the_idle_service():
    idle = dict.fromkeys(PARTS, 0.0) | {"ingress": 10.0}
    kinds = {
        "stream, 1 block": CpuTime(20.0, dict.fromkeys(PARTS, 1.0) | {"ingress": 2.2}),
        "stream, 32 blocks": CpuTime(500.0, dict.fromkeys(PARTS, 1.0) | {"ingress": 2.0 + 5.0 + 31 * 0.25}),
    }
    result = _cpu(kinds, idle)
    assert result["cpu_ms_stream, 1 block"] == dict.fromkeys(PARTS, 1.0) | {"ingress": 2.0}
    assert result["cpu_ms_further_block"] == 0.25
    assert result["idle_cpu_ms_per_s"]["ingress"] == 10.0
