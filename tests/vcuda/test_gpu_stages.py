"""A stage of `make gpu` on the virtual CUDA device, small: a step, modes with graphs, and traces."""

import json
from functools import partial

import torch

from benchmarks.gpu import speed
from benchmarks.gpu.rows import GPU_SHAPES, Extent, Rows
from benchmarks.inflated import inflate
from benchmarks.machine import Rates
from benchmarks.shapes import Shape
from service.engine import EngineConfig
from service.engine.forward import profiler
from tests.engine.helpers import CHEAP_ROWS
from tests.tiny import GOLDEN, GOLDEN_NAMES


def test_speed_on_cuda(device, tmp_path, monkeypatch):
    """Weights of three layers, a step of one row, two modes, at most ten rows: few graphs, few seconds."""
    monkeypatch.setitem(GPU_SHAPES, "small", Shape(72, 128, 3, 4, 2, 16, 1026, 1024))
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
    cuda = torch.device("cuda:0")
    with Rows(tmp_path / "rows", cuda, 600) as written:
        speed.measure_speed(written, cuda, torch.float32, extent)
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text("utf-8").splitlines()]
    assert [row["what"] for row in rows] == ["rates", "step", "mode", "mode", "traces"]
    assert all(row["tokens_per_s"] > 0 for row in rows[2:4])
    assert not written.failed
    assert device.counts.captures > 0
    assert len(list(tmp_path.glob("*.json.gz"))) == 2
