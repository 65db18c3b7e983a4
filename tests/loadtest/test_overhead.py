"""The engine alone, with the requests of the service, and the conclusion from both."""

import argparse
import itertools
import json
from types import SimpleNamespace

import pytest

from loadtest import overhead
from loadtest.overhead import Alone, Lone, conclude, workload
from service.engine import Engine

ARGUMENTS = argparse.Namespace(
    mode="speculative@mrp_steps=2", threads=1, concurrency=4, short=8, seed=17, ratio=0.9, more_ms=3.0
)


@pytest.fixture(scope="module")
def alone():
    return Alone(None, threads=1, max_running=8)


def test_the_engine_alone_takes_the_bodies_of_requests(alone, monkeypatch):
    """By a clock that a step of the engine moves by 10 ms: tokens of static come one a step and request."""
    now, step = 0.0, Engine.step

    def counted(engine):
        nonlocal now
        now += 0.010
        return step(engine)

    monkeypatch.setattr(Engine, "step", counted)
    monkeypatch.setattr(overhead, "_WARM_S", 0.2)
    monkeypatch.setattr(overhead, "time", SimpleNamespace(perf_counter=lambda: now))
    static = argparse.Namespace(**{**vars(ARGUMENTS), "mode": "static"})
    bodies = (workload(static, 16).request(number).body for number in itertools.count())
    # all but what of blocks lies across the two ends of the second
    assert alone.tokens_per_s(bodies, together=4, seconds=1.0) == pytest.approx(4 / 0.010, rel=0.2)
    asked = next(bodies) | {"ignore_eos": True}
    assert alone.seconds(asked) == pytest.approx(asked["max_new_tokens"] * 0.010, abs=0.011)


@pytest.mark.parametrize(
    ("http", "lone_s", "broken"),
    [(95.0, 0.012, 0), (85.0, 0.012, 1), (95.0, 0.014, 1), (85.0, 0.014, 2)],
)
def test_limits_decide(capsys, http, lone_s, broken):
    status = conclude(ARGUMENTS, [(100.0, http)] * 3, [Lone(0.010, lone_s, 0.011)] * 5)
    said = json.loads(capsys.readouterr().out)
    assert (status, len(said["broken"])) == (int(broken > 0), broken)
    assert (said["ratio"], said["lone_more_ms"]) == (http / 100, round(1000 * (lone_s - 0.010), 2))
