"""Stages of a GPU on the virtual CUDA device, small: steps, modes, `deterministic`, a service of known behaviour."""

import json
import subprocess
from contextlib import asynccontextmanager
from functools import partial

import pytest
import torch

from benchmarks.gpu import deterministic, speed
from benchmarks.gpu import service as over_http
from benchmarks.gpu.rows import GPU_SHAPES, Extent, Rows
from benchmarks.inflated import inflate
from benchmarks.machine import Rates
from benchmarks.shapes import Shape
from service.engine import EngineConfig
from service.engine.forward import profiler
from service.model import load_checkpoint
from service.quality.presets import presets_of
from tests.engine.helpers import CHEAP_ROWS
from tests.loadtest.fake import Fake, serve
from tests.tiny import GOLDEN, GOLDEN_NAMES

CUDA = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def small_shape(monkeypatch):
    """Weights of three layers."""
    monkeypatch.setitem(GPU_SHAPES, "small", Shape(72, 128, 3, 4, 2, 16, 1026, 1024))


def rows_of(stage, path, extent):
    """The rows of a stage in which nothing was wrong."""
    with Rows(path / "rows", CUDA, 600) as written:
        stage(written, CUDA, torch.float32, extent)
    assert not written.failed
    return [json.loads(line) for line in (path / "rows").read_text("utf-8").splitlines()]


def test_speed_on_cuda(device, tmp_path, monkeypatch):
    """A step of one row, two modes, at most ten rows: few graphs, few seconds."""
    monkeypatch.setattr(speed, "inflate", lambda _, *rest: inflate(GOLDEN / GOLDEN_NAMES[0], *rest))
    monkeypatch.setattr(speed, "measure_rates", lambda *_: Rates(1e12, 1e14))  # its matrices are a card's
    monkeypatch.setattr(speed, "MODES", speed.MODES[:1] + speed.MODES[4:5])
    for name, value in {"BLOCK_SIZES": (8,), "STEP_ROUNDS": 1, "QUANT_SCHEMES": (), "_FEWEST": 1}.items():
        monkeypatch.setattr(speed, name, value)
    for name in ("_answers", "_async_scheduling"):  # more of the same; tests/benchmarks runs them
        monkeypatch.setattr(speed, name, lambda *_: None)
    for module in ("benchmarks.throughput", "benchmarks.gpu.speed"):
        monkeypatch.setattr(f"{module}.EngineConfig", partial(EngineConfig, max_rows=10))
    monkeypatch.setattr("benchmarks.throughput.measure", lambda *_, **__: CHEAP_ROWS)
    monkeypatch.setattr(profiler, "_SKIPPED", 1)
    monkeypatch.setattr(profiler, "_TRACED", 2)
    extent = Extent(("small",), (1,), (1,), 8, rounds=1, new_tokens=4, block_sizes=(4,), torch_profiler_dir=tmp_path)
    rows = rows_of(speed.measure_speed, tmp_path, extent)
    assert [row["what"] for row in rows] == ["rates", "step", "mode", "mode", "traces"]
    assert all(row["tokens_per_s"] > 0 for row in rows[2:4])
    assert device.counts.captures > 0
    assert len(list(tmp_path.glob("*.json.gz"))) == 2


def test_deterministic_on_cuda(device, tmp_path, monkeypatch):
    """Two modes at one load, each with `deterministic` and without."""
    monkeypatch.setattr(deterministic, "MODES", deterministic.MODES[::2])
    monkeypatch.setattr(deterministic, "EngineConfig", partial(EngineConfig, max_rows=10))
    monkeypatch.setattr("service.engine.engine.measure", lambda *_, **__: CHEAP_ROWS)
    extent = Extent(("small",), (2,), rounds=1, new_tokens=4, model=GOLDEN / GOLDEN_NAMES[0])
    static, drafted = rows_of(deterministic.measure_deterministic, tmp_path, extent)
    assert (static["mode"], drafted["mode"], drafted["knobs"]["mrp_steps"]) == ("static", "speculative", 3)
    for row in (static, drafted):
        assert row["ratio"] == row["seconds_deterministic"] / row["seconds"] > 0
        assert row["same"] == row["same_deterministic"] == row["of"] == 4
    assert device.counts.captures > 0


def test_service_on_cuda(device, tmp_path, monkeypatch):
    """The checkpoint is the device's. The service answers at once, and its engine is a process that sleeps."""
    served = []
    with serve(Fake()) as url, subprocess.Popen(["sleep", "60"]) as engine:

        @asynccontextmanager
        async def running(_, *flags):
            served.append((load_checkpoint(flags[1]), presets_of(flags[1], load_checkpoint(flags[1]).config)))
            yield over_http.Running(url, None)

        monkeypatch.setattr(over_http, "service", running)
        monkeypatch.setattr(over_http, "processes", lambda *_: [engine.pid])
        words = {"plans": "default,balanced", "learn_s": 0.2, "steady_s": 0.5, "together": 2}
        rows = rows_of(over_http.measure_service, tmp_path, Extent(("demo",), (2,), **words))
        assert engine.wait() == -9
    [(checkpoint, presets)] = served
    assert checkpoint.config.hidden_size == GPU_SHAPES["demo"].hidden_size
    assert {*presets.plans} == {"lossless", "balanced", "fast"}
    assert [row["what"] for row in rows] == ["start", "answers", "killed", *["users"] * 4]
    assert (rows[1]["right"], rows[1]["of"]) == (48, 48)
    assert [(row["plan"], row["part"]) for row in rows[3:]] == [
        (plan, part) for plan in ("default", "balanced") for part in ("learning", "steady")
    ]
    assert all(row["p95_ms"] >= row["p50_ms"] > 0 for row in rows[3:])
