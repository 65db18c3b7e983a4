"""The stages that `make gpu` runs, on the CPU and small: rows as they are measured, time limits, exit statuses."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import peers
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.paper import PAPER, measure_paper
from benchmarks.gpu.peers import measure_peers
from benchmarks.gpu.rows import Extent, Rows
from benchmarks.gpu.speed import PLANS, VARIANTS, measure_speed
from benchmarks.shapes import SHAPES, Shape
from service.engine.forward import profiler
from tests.engine.helpers import FAIR
from tests.test_imports import imported

CPU = torch.device("cpu")
SMALL = Extent(("small",), (2,), (2,), 32, rounds=1, new_tokens=8)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "small", Shape(136, 384, 28, 4, 2, 32, 1100, 2048))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_correctness_on_this_device(tmp_path: Path) -> None:
    words = ("correctness", "--device", "cpu", "--requests", "4", "--golden", "tests/golden", "--out", str(tmp_path))
    assert main([*words, "--seconds=-1"]) == 1  # what was left out is not right
    [row] = read(tmp_path / "gpu-correctness.jsonl")
    assert row["what"] == "left out: no time"


def test_a_wrong_decode_is_a_row_and_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [("good", lambda: (3, 3)), ("bad", lambda: (2, 3)), ("broken", lambda: 1 / 0)]
    monkeypatch.setattr("benchmarks.gpu.correctness._checks", lambda *_: checks)
    assert main(["correctness", "--device", "cpu", "--out", str(tmp_path)]) == 1
    good, bad, broken = read(tmp_path / "gpu-correctness.jsonl")
    assert (good["right"], good["of"], bad["right"], bad["of"]) == (3, 3, 2, 3)
    assert "ZeroDivisionError" in broken["error"]
    monkeypatch.setattr("benchmarks.gpu.correctness._checks", lambda *_: checks[:1])
    assert main(["correctness", "--device", "cpu", "--out", str(tmp_path)]) == 0


@pytest.mark.usefixtures("quick_rates")
def test_speed_has_a_row_for_every_step_and_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.speed.PLANS", PLANS[:2])
    monkeypatch.setattr("benchmarks.gpu.speed.VARIED", PLANS[:1])
    monkeypatch.setattr("benchmarks.gpu.speed.QUANT_SCHEMES", ("w8a8",))
    monkeypatch.setattr("benchmarks.throughput.measure", lambda *_: FAIR)  # test_loads.py measures them
    with Rows(tmp_path / "rows", CPU, 600) as written:
        measure_speed(written, CPU, torch.float32, SMALL)
    rows = read(tmp_path / "rows")
    assert [row["what"] for row in rows] == ["rates", *["step"] * 2, *["plan"] * 2, *["variant"] * 3]
    assert [row.get("quantization") for row in rows[1:3]] == [None, "w8a8"]
    assert [row["variant"] for row in rows[5:]] == list(VARIANTS)
    plans = [row for row in rows if row["what"] == "plan"]
    assert plans[0]["times_static"] == 1
    assert 0 < plans[0]["tokens_per_forward"] <= 1
    assert all(row["tokens_per_s"] > 0 for row in plans)
    assert all("torch" in row["machine"] for row in rows)


@pytest.mark.usefixtures("quick_rates")
def test_the_papers_rows_of_both_block_sizes_stand_beside_the_autoregressive_yardstick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.throughput.measure", lambda *_: FAIR)
    monkeypatch.setattr(profiler, "_SKIPPED", 1)
    monkeypatch.setattr(profiler, "_TRACED", 2)
    extent = replace(SMALL, concurrencies=(1, 2), torch_profiler_dir=tmp_path / "traces")
    with Rows(tmp_path / "rows", CPU, 600) as written:
        measure_paper(written, CPU, torch.float32, extent)
    rows = read(tmp_path / "rows")
    yardstick = {row["concurrency"]: row["tokens_per_s"] for row in rows if row["what"] == "autoregressive"}
    paper = [row for row in rows if row["what"] == "paper"]
    assert list(yardstick) == [1, 2]
    assert [(row["block_size"], row["concurrency"]) for row in paper[:: len(PAPER)]] == [
        (16, 1),
        (16, 2),
        (4, 1),
        (4, 2),
    ]
    assert [row["plan"] for row in paper[: len(PAPER)]] == ["static", "speculative", "direct", "direct", "speculative"]
    assert [row["knobs"].get("mrp_steps") for row in paper[: len(PAPER)]] == [None, 3, 1, 2, "auto"]
    assert {row["paper_times_static"] for row in paper} == {None}
    for row in paper:
        assert row["times_autoregressive"] == pytest.approx(row["tokens_per_s"] / yardstick[row["concurrency"]])
    assert rows[-1]["what"] == "traces"
    assert len(list((tmp_path / "traces").glob("*.json.gz"))) == 2


def test_8b_in_blocks_of_16_stands_beside_the_papers_speed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [{"plan": mode.mode, "tokens_per_s": 10.0, "times_static": 1.0} for mode in PAPER]
    monkeypatch.setattr("benchmarks.gpu.paper.inflate", lambda *_: None)
    monkeypatch.setattr("benchmarks.gpu.paper._autoregressive", lambda *_: {})
    monkeypatch.setattr("benchmarks.gpu.paper.plan_rows", lambda *_: map(dict, plans))
    with Rows(tmp_path / "rows", CPU, 600) as written:
        measure_paper(written, CPU, torch.float32, Extent(("sdar-4b", "sdar-8b"), (1,)))
    rows = read(tmp_path / "rows")
    speedups = [row["paper_times_static"] for row in rows]
    assert rows[0]["shape"] == "sdar-8b"
    assert speedups[: len(PAPER)] == [None, [1.26, 1.40], [1.51, 1.61], [1.75, 1.91], None]
    assert not any(speedups[len(PAPER) :])


def test_the_largest_shape_comes_first_and_what_is_left_out_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.gpu.paper.inflate", lambda *_: pytest.fail("the time is over"))
    assert main(["paper", "--device", "cpu", "--seconds=-1", "--out", str(tmp_path)]) == 0
    [row] = read(tmp_path / "gpu-paper.jsonl")
    assert (row["what"], row["of"]) == ("left out: no time", "sdar-8b, blocks of 16")


def test_peers_on_random_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "small", Shape(64, 128, 2, 4, 2, 16, 1100, 2048))
    monkeypatch.setattr(peers, "_RAW", peers._RAW | {"mask_token_id": 1050, "eos_token_id": 1051})
    with Rows(tmp_path / "rows", CPU, 600) as written:
        measure_peers(written, CPU, torch.float32, SMALL)
    first, last = read(tmp_path / "rows")
    assert first["ratio"] == pytest.approx(first["engine"] / first["plain"])
    assert last["of"] == "lmdeploy"


def test_without_the_device_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["speed", "--out", str(tmp_path)]) == 1
    assert "CUDA" in capsys.readouterr().err


def test_the_stages_need_no_command_line_and_no_service() -> None:
    """A GPU machine has few packages beside torch and transformers. tests/test_imports.py holds those of `service`."""
    reached, waiting = set[Path](), {*Path("benchmarks/gpu").glob("*.py")}
    names = set[str]()
    while waiting:
        reached |= waiting
        names |= {name for path in waiting for name in imported(ast.parse(path.read_text("utf-8")))}
        ours = (
            Path(*name.split(".")[:-1]).with_suffix(".py")
            for name in names
            if name.startswith(("benchmarks.", "loadtest."))
        )
        waiting = {path for path in ours if path.is_file()} - reached
    assert {Path("benchmarks/steps.py"), Path("loadtest/paper/published.py")} <= reached
    heavy = ("ray", "fastapi", "uvicorn", "typer", "service.cli", "service.gateway", "service.rayserve", "service.app")
    assert [name for name in names if name.startswith(heavy)] == []
