"""The stages that `make gpu` runs, on the CPU and small: rows as they are measured, time limits, exit statuses."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import lmdeploy, peers, speed
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.correctness import _all_checks, _experts, _products
from benchmarks.gpu.peers import measure_peers
from benchmarks.gpu.rows import GPU_SHAPES, Extent, Rows
from benchmarks.gpu.shares import run_checks
from benchmarks.gpu.speed import MODES, measure_speed
from benchmarks.inflated import inflate
from benchmarks.shapes import Shape
from service.decode.modes import Speculative
from service.engine.forward import profiler
from service.model.quantization.schemes import QUANT_SCHEMES, QuantScheme
from tests.benchmarks.some_checks import some_checks
from tests.engine.helpers import FAIR
from tests.tiny import GOLDEN, GOLDEN_NAMES

CPU = torch.device("cpu")
SMALL = Extent(("small",), (2,), (2,), 32, rounds=1, new_tokens=8, block_sizes=(1, 4))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that a golden checkpoint of three layers fits into, in place of the demo with its 28."""
    monkeypatch.setitem(GPU_SHAPES, "small", Shape(72, 128, 3, 4, 2, 16, 1100, 2048))
    monkeypatch.setattr(speed, "inflate", lambda _, *rest: inflate(GOLDEN / GOLDEN_NAMES[0], *rest))
    monkeypatch.setattr("benchmarks.throughput.measure", lambda *_: FAIR)  # test_loads.py measures them


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def rows_of(tmp_path: Path, *chosen: int, processes: int = 2, seconds: float = 600) -> tuple[bool, dict[str, Any]]:
    """Whether something was wrong, and the rows by name."""
    with Rows(tmp_path / "rows", CPU, seconds) as rows:
        run_checks(rows, partial(some_checks, *chosen), processes)
    return rows.failed, {row["what"]: row for row in read(tmp_path / "rows")}


def test_checks_of_this_device_run_in_processes_beside_each_other(tmp_path: Path) -> None:
    words = ("correctness", "--device", "cpu", "--requests", "4", "--golden", str(GOLDEN), "--out", str(tmp_path))
    assert main([*words, "--only", "product with"]) == 0
    rows = read(tmp_path / "gpu-correctness.jsonl")
    assert {(row["what"], row["right"], row["of"]) for row in rows} == {
        (f"product with {form} matrices", 4, 4) for form in QUANT_SCHEMES
    }
    assert all("torch" in row["machine"] for row in rows)


def test_wrong_answers_are_rows_and_fail_where_they_were_promised(tmp_path: Path) -> None:
    failed, rows = rows_of(tmp_path, 0, 1, processes=1)
    assert not failed
    assert (rows["informs"]["right"], rows["informs"]["of"], rows["informs"]["promised"]) == (1, 3, False)
    failed, rows = rows_of(tmp_path, 2)
    assert failed
    assert (rows["wrong"]["right"], rows["wrong"]["of"]) == (2, 3)


def test_an_error_and_a_dead_process_are_rows_and_the_other_share_goes_on(tmp_path: Path) -> None:
    failed, rows = rows_of(tmp_path, 4, 3, 0, 1)
    assert failed
    assert "ZeroDivisionError" in rows["broken"]["error"]
    assert rows["informs"]["right"] == 1  # behind the error, in the same process
    for name in ("dead", "right"):  # a share
        assert rows[name]["error"] == "its process ended with exit status 7"


def test_what_the_time_does_not_suffice_for_is_a_row_and_fails(tmp_path: Path) -> None:
    failed, rows = rows_of(tmp_path, 5, seconds=0.5)
    assert failed
    assert rows["left out: no time"]["of"] == "hangs"
    assert main(["correctness", "--device", "cpu", "--seconds=-1", "--only", "int8", "--out", str(tmp_path)]) == 1


def test_only_deterministic_promises_exactness_beside_float32() -> None:
    checks = list(_all_checks(CPU, GOLDEN, 4))
    open_ones = [check.name for check in checks if not check.promised]
    assert open_ones
    assert all("speculative = static" in name and "deterministic True" not in name for name in open_ones)
    assert sum("golden" in check.name and check.promised for check in checks) >= 4


@pytest.mark.parametrize("form", QUANT_SCHEMES.values(), ids=lambda form: form.name)
def test_right_products_with_8_bit_matrices_are_no_wrong_row(form: QuantScheme) -> None:
    """The rounding of activations to 8 bits is the scheme's, and no error of a product."""
    torch.manual_seed(0)
    assert _products(CPU, form) == (4, 4)
    assert _experts(CPU, form) == (3, 3)


@pytest.mark.usefixtures("quick_rates")
def test_speed_has_a_row_for_every_step_mode_and_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "BLOCK_SIZES", (8, 1))
    monkeypatch.setattr(speed, "STEP_ROUNDS", 1)
    monkeypatch.setattr(speed, "QUANT_SCHEMES", ("w8a8",))
    monkeypatch.setattr(speed, "_TOGETHER", 2)
    monkeypatch.setattr(profiler, "_SKIPPED", 1)
    monkeypatch.setattr(profiler, "_TRACED", 2)
    with Rows(tmp_path / "rows", CPU, 600) as written:
        measure_speed(written, CPU, torch.float32, replace(SMALL, torch_profiler_dir=tmp_path / "traces"))
    rows = read(tmp_path / "rows")
    assert not written.failed
    assert [row["what"] for row in rows] == [
        *("rates", *["step"] * 3, *["mode"] * (1 + len(MODES)), *["answers"] * 6, *["overlap"] * 4, "traces")
    ]
    assert [(row["block_size"], row["quantization"]) for row in rows[1:4]] == [(8, None), (1, None), (8, "w8a8")]
    line, static, *others = (row for row in rows if row["what"] == "mode")
    assert (line["block_size"], line["mode"], line["tokens_per_forward"]) == (1, "static", 1)
    assert (static["block_size"], static["times_static"], static["every_times_static"]) == (4, 1, [1])
    for row in (static, *others):
        assert row["times_autoregressive"] == pytest.approx(row["tokens_per_s"] / line["tokens_per_s"])
    assert {(row["right"], row["of"]) for row in rows if row["what"] == "answers"} == {(4, 4)}
    assert len(list((tmp_path / "traces").glob("*.json.gz"))) == 2


def test_8b_comes_first_and_has_the_papers_speed_ups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GPU_SHAPES, "sdar-8b", GPU_SHAPES["small"])
    extent = replace(SMALL, shapes=("sdar-8b",), block_sizes=(4,))
    with Rows(tmp_path / "rows", CPU, 600) as written:
        speed._modes(written, "sdar-8b", speed.LoadOptions(torch.float32, "cpu", block_size=4), extent, {})
    beside = {
        (row["mode"], row["knobs"].get("mrp_steps")): row["paper_times_static"] for row in read(tmp_path / "rows")
    }
    assert {key: value for key, value in beside.items() if value} == {
        ("speculative", 3): [1.26, 1.40],
        ("direct", 1): [1.51, 1.61],
        ("direct", 2): [1.75, 1.91],
    }
    assert Speculative(3) in MODES
    assert Extent().shapes[0] == "sdar-8b"


@pytest.mark.usefixtures("quick_rates")
def test_parts_that_fail_or_have_no_time_are_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "inflate", lambda *_: 1 // 0)
    words = ["speed", "--device", "cpu", "--shapes", "small", "--block-sizes", "4", "--out", str(tmp_path)]
    assert main(words) == 1
    _, *errors = read(tmp_path / "gpu-speed.jsonl")
    assert [row["of"] for row in errors[-3:]] == ["modes of small, blocks of 4", "answers of small", "overlap of small"]
    assert all("ZeroDivisionError" in row["error"] for row in errors)
    assert main([*words, "--seconds=-1"]) == 0
    _, *left_out = read(tmp_path / "gpu-speed.jsonl")
    assert {row["what"] for row in left_out} == {"left out: no time"}
    assert len(left_out) == len(errors)


#: what `benchmarks.gpu.lmdeploy` asks of LMDeploy; it answers at once
LMDEPLOY = """
from types import SimpleNamespace as Some
from logging import getLogger as get_logger
__version__ = "0"
GenerationConfig = PytorchEngineConfig = dict

class Engine:
    def __init__(self, folder, engine_config, trust_remote_code):
        print(f"reads {folder}")
        self.size, self.executor = engine_config["dllm_block_length"], Some(model_agent=self)
        self.cache_config, self.model_config = Some(num_gpu_blocks=9), Some(dtype=engine_config["dtype"])

    from_pretrained = classmethod(lambda cls, *arguments, **named: cls(*arguments, **named))
    create_instance = lambda self: self
    start = lambda self: None

    async def _async_model_forward(self): ...

    async def async_stream_infer(self, session, input_ids, gen_config):
        for _ in range(gen_config["max_new_tokens"] // self.size):
            await self.executor.model_agent._async_model_forward()
            yield Some(token_ids=[7] * self.size, status=Some(name="FINISH"))
"""


@pytest.fixture
def random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GPU_SHAPES, "small", Shape(64, 128, 2, 4, 2, 16, 1100, 2048))
    monkeypatch.setattr(peers, "_RAW", peers._RAW | {"mask_token_id": 1050, "eos_token_id": 1051})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `lmdeploy` in this process and in its children."""
    for name in ("", "pytorch", "pytorch/engine", "utils"):
        folder = tmp_path / "packages/lmdeploy" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(LMDEPLOY)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'packages'}:{Path.cwd()}")


@pytest.mark.usefixtures("random_weights")
def test_without_lmdeploy_peers_have_the_engine(tmp_path: Path) -> None:
    with Rows(tmp_path / "rows", CPU, 600) as written:
        measure_peers(written, CPU, torch.float32, SMALL)
    engine, last = read(tmp_path / "rows")
    assert engine["tokens_per_s"] == max(engine["every"][1:]) > 0
    assert (last["what"], last["of"]) == ("left out: not installed", "lmdeploy")


@pytest.mark.usefixtures("random_weights", "installed")
def test_lmdeploy_decodes_the_same_weights_in_its_own_process(tmp_path: Path) -> None:
    with Rows(tmp_path / "rows", CPU, 600) as written:
        measure_peers(written, CPU, torch.float32, SMALL)
    _, note, started, row = read(tmp_path / "rows")
    assert "masks with 151669" in note["note"]
    assert (started["started"], started["dtype"], started["pages"]) == ("lmdeploy 0", "bfloat16", 9)
    assert (row["what"], row["concurrency"], row["tokens"], row["forwards"]) == ("lmdeploy", 2, 16, 4)
    assert row["statuses"] == ["FINISH"]
    assert not written.failed


@pytest.mark.usefixtures("random_weights", "installed")
def test_an_error_of_lmdeploy_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "packages/lmdeploy/pytorch/engine/__init__.py").write_text("Engine = None")
    with Rows(tmp_path / "rows", CPU, 600) as written:
        measure_peers(written, CPU, torch.float32, SMALL)
    *_, error, status = read(tmp_path / "rows")
    assert "AttributeError" in error["error"]
    assert status["error"] == "exit status 1"
    assert written.failed


def test_lmdeploy_gets_the_fields_and_the_tokenizer_that_it_reads(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(peers._RAW | {"vocab_size": 151936}))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    view = lmdeploy.dressed(tmp_path)
    raw = json.loads((view / "config.json").read_text())
    assert raw["rope_parameters"] == {"rope_type": "default", "rope_theta": 1000000.0}
    assert (raw["hidden_act"], raw["torch_dtype"], raw["sliding_window"]) == ("silu", "bfloat16", None)
    assert (view / "model.safetensors").read_bytes() == b"weights"
    assert {"tokenizer.json", "tokenizer_config.json"} <= {file.name for file in view.iterdir()}


def test_without_the_device_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["speed", "--out", str(tmp_path)]) == 1
    assert "CUDA" in capsys.readouterr().err
