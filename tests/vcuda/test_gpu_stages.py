"""A stage of `make gpu` on the virtual CUDA device, small: the paper's rows and a trace.

The device lacks operations of transformers' `generate`. So the yardstick runs on the CPU only (tests/benchmarks).
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu.paper import PAPER, measure_paper
from benchmarks.gpu.rows import Extent, Rows
from benchmarks.shapes import SHAPES, Shape
from service.engine import EngineConfig
from service.engine.forward import profiler
from tests.engine.helpers import FAIR
from tests.vcuda.device import VirtualDevice


def test_the_papers_rows_on_cuda(device: VirtualDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "small", Shape(136, 384, 28, 4, 2, 32, 1026, 1024))
    yardstick = SimpleNamespace(tokens_per_s=lambda *_: 10.0)
    monkeypatch.setattr("benchmarks.gpu.paper.AutoregressiveLoop", lambda _: yardstick)
    for module in ("benchmarks.throughput", "benchmarks.gpu.paper"):
        monkeypatch.setattr(f"{module}.EngineConfig", partial(EngineConfig, max_rows=8))  # few graphs
    monkeypatch.setattr("benchmarks.throughput.measure", lambda *_: FAIR)
    monkeypatch.setattr(profiler, "_SKIPPED", 1)
    monkeypatch.setattr(profiler, "_TRACED", 2)
    extent = Extent(("small",), (2,), rounds=1, new_tokens=8, block_sizes=(4,), torch_profiler_dir=tmp_path)
    cuda = torch.device("cuda:0")
    with Rows(tmp_path / "rows", cuda, 600) as written:
        measure_paper(written, cuda, torch.float32, extent)
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text("utf-8").splitlines()]
    assert [row["what"] for row in rows] == ["autoregressive", *["paper"] * len(PAPER), "traces"]
    assert all(row["tokens_per_s"] > 0 for row in rows[:-1])
    assert device.counts.captures > 0
    assert len(list(tmp_path.glob("*.json.gz"))) == 2
