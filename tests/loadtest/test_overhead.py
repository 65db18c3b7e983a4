"""The engine alone, with the requests of the service, and the conclusion from both."""

import argparse
import itertools
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from loadtest.harness import Running
from loadtest.overhead import alone as engine_alone
from loadtest.overhead import cpu, plain
from loadtest.overhead.__main__ import Found, _cpu, conclude, fixed
from loadtest.overhead.alone import Alone
from loadtest.overhead.cpu import PARTS, Spent
from loadtest.overhead.lone import Lone, live
from loadtest.overhead.picture import draw
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
    monkeypatch.setattr(engine_alone, "WARM_S", 0.2)
    monkeypatch.setattr(engine_alone, "time", SimpleNamespace(perf_counter=lambda: now))
    static = argparse.Namespace(**{**vars(ARGUMENTS), "mode": "static"})
    bodies = (fixed(static, 16).request(number).body for number in itertools.count())
    # all but what of blocks lies across the two ends of the second
    assert alone.tokens_per_s(bodies, together=4, seconds=1.0) == pytest.approx(4 / 0.010, rel=0.2)
    asked = next(bodies) | {"ignore_eos": True}
    assert alone.seconds(asked) == pytest.approx(asked["max_new_tokens"] * 0.010, abs=0.011)


@pytest.mark.parametrize(
    ("http", "lone_s", "broken"),
    [(95.0, 0.012, 0), (85.0, 0.012, 2), (95.0, 0.014, 1), (85.0, 0.014, 3)],
)
def test_limits_decide(capsys, http, lone_s, broken):
    rates = {kind: [(100.0, http)] * 3 for kind in ("whole", "stream")}
    found = Found(rates, [Lone(0.010, lone_s, 0.011)] * 5, [[0.003] * 5, [0.001] * 5])
    status = conclude(ARGUMENTS, found)
    said = json.loads(capsys.readouterr().out)
    assert (status, len(said["broken"])) == (int(broken > 0), broken)
    assert (said["ratio_whole"], said["ratio_stream"]) == (http / 100, http / 100)
    assert said["lone_more_p50_ms"] == pytest.approx(1000 * (lone_s - 0.010))
    assert said["live_ratio"] == 3.0


def test_a_plain_server_answers():
    with plain.running() as url:
        [first, second] = live([url, url], 10)
    assert len(first) == len(second) == 9
    assert min(first + second) > 0


def test_the_time_of_a_thread_is_counted():
    burn = sum(number for number in range(10**6))
    assert burn > 0
    assert cpu._threads(os.getpid())[os.getpid()] > 0


def test_the_time_that_passes_anyway_is_no_requests():
    idle = dict.fromkeys(PARTS, 0.0) | {"ingress": 10.0}
    short = Spent(20.0, dict.fromkeys(PARTS, 1.0) | {"ingress": 2.2})
    long = Spent(500.0, dict.fromkeys(PARTS, 1.0) | {"ingress": 2.0 + 5.0 + 31 * 0.25})
    said = _cpu({"stream, 1 block": short, "stream, 32 blocks": long}, idle)
    assert said["cpu_ms_stream, 1 block"] == dict.fromkeys(PARTS, 1.0) | {"ingress": 2.0}
    assert said["cpu_ms_further_block"] == 0.25
    assert said["idle_cpu_ms_per_s"]["ingress"] == 10.0


async def test_what_processes_take_at_rest_is_counted():
    burning = "import time\nbegan = time.monotonic()\nwhile time.monotonic() < began + 20: pass"
    with subprocess.Popen([sys.executable, "-c", burning]) as process:
        found = await cpu.at_rest(Running("", os.getpid()), seconds=0.5)
        process.kill()
    assert set(found) == set(PARTS) - {"client"}
    assert found["Ray"] > 0


def test_a_picture_has_a_bar_for_each_kind(tmp_path):
    kinds = ("whole, 1 block", "stream, 1 block", "whole, 64 blocks")
    draw({kind: dict.fromkeys(PARTS, 1.5) for kind in kinds}, tmp_path / "cpu.png")
    assert (tmp_path / "cpu.png").read_bytes().startswith(b"\x89PNG")
