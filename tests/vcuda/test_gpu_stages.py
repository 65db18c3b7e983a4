"""Stages of `make gpu` on the virtual CUDA device, small: correctness, the paper's rows and a trace, speed.

The device lacks operations of transformers' `generate`. So the yardstick runs on the CPU only (tests/benchmarks).
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu.correctness import check_device
from benchmarks.gpu.paper import PAPER, measure_paper
from benchmarks.gpu.rows import Extent, Rows
from benchmarks.gpu.speed import PLANS, measure_speed
from benchmarks.machine import Rates
from benchmarks.shapes import SHAPES, Shape
from service.engine import EngineConfig
from service.engine.forward import profiler
from service.model.quantization.schemes import QUANT_SCHEMES
from tests.engine.helpers import FAIR
from tests.tiny import GOLDEN, GOLDEN_NAMES
from tests.vcuda.device import VirtualDevice

CUDA = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "small", Shape(136, 384, 28, 4, 2, 32, 1026, 1024))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_papers_rows_on_cuda(device: VirtualDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yardstick = SimpleNamespace(tokens_per_s=lambda *_: 10.0)
    monkeypatch.setattr("benchmarks.gpu.paper.AutoregressiveLoop", lambda _: yardstick)
    for module in ("benchmarks.throughput", "benchmarks.gpu.paper"):
        monkeypatch.setattr(f"{module}.EngineConfig", partial(EngineConfig, max_rows=8))  # few graphs
    monkeypatch.setattr("benchmarks.throughput.measure", lambda *_: FAIR)
    monkeypatch.setattr(profiler, "_SKIPPED", 1)
    monkeypatch.setattr(profiler, "_TRACED", 2)
    extent = Extent(("small",), (2,), rounds=1, new_tokens=8, block_sizes=(4,), torch_profiler_dir=tmp_path)
    with Rows(tmp_path / "rows", CUDA, 600) as written:
        measure_paper(written, CUDA, torch.float32, extent)
    rows = read(tmp_path / "rows")
    assert [row["what"] for row in rows] == ["autoregressive", *["paper"] * len(PAPER), "traces"]
    assert all(row["tokens_per_s"] > 0 for row in rows[:-1])
    assert device.counts.captures > 0
    assert len(list(tmp_path.glob("*.json.gz"))) == 2


@pytest.mark.slow
def test_all_checks_of_correctness_on_cuda(
    device: VirtualDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks of the demo have a small checkpoint of random weights, whose answers may round differently."""
    (tmp_path / "sdar-one").symlink_to(GOLDEN / GOLDEN_NAMES[0])
    monkeypatch.setattr("benchmarks.gpu.correctness.CHECKPOINT", GOLDEN / GOLDEN_NAMES[0])
    with Rows(tmp_path / "rows", CUDA, 600) as written:
        check_device(written, CUDA, tmp_path, 2)
    rows = read(tmp_path / "rows")
    assert [row["error"] for row in rows if "error" in row] == []
    assert len(rows) == 4 * 4 + 3 * len(QUANT_SCHEMES)
    assert all(row["right"] == row["of"] for row in rows if not row["what"].startswith("demo"))
    assert device.counts.replays > 0


@pytest.mark.slow
def test_steps_and_plans_on_cuda(device: VirtualDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.speed.measure_rates", lambda *_: Rates(1e12, 1e14))
    monkeypatch.setattr("benchmarks.gpu.speed.PLANS", PLANS[:2])
    monkeypatch.setattr("benchmarks.gpu.speed.VARIED", PLANS[:1])
    monkeypatch.setattr("benchmarks.throughput.measure", lambda *_: FAIR)
    extent = Extent(("small",), (2,), (1, 2), 32, rounds=1, new_tokens=8)
    with Rows(tmp_path / "rows", CUDA, 600) as written:
        measure_speed(written, CUDA, torch.float32, extent)
    kinds = [row["what"] for row in read(tmp_path / "rows")]
    assert kinds == ["rates", *["step"] * 2 * (1 + len(QUANT_SCHEMES)), *["plan"] * 2, *["variant"] * 3]
    assert device.counts.replays > 0
