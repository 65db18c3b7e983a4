"""The stages that `make gpu` runs, on the CPU and small: rows as they are measured, time limits, exit statuses."""

import json
from functools import partial

import pytest
import torch

from benchmarks.gpu import peers, speed
from benchmarks.gpu import service as over_http
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.correctness import _experts
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.shares import run_checks
from benchmarks.gpu.speed import MODES
from service.model.quantization.schemes import QUANT_SCHEMES
from tests.benchmarks.some_checks import some_checks
from tests.tiny import GOLDEN, GOLDEN_NAMES

CPU = torch.device("cpu")
SMALL = ("--device", "cpu", "--shapes", "tiny", "--concurrency", "2", "--rows", "2", "--context", "32", "--rounds", "1")


def stage(name, out, *words):
    """The exit status of a stage, and its rows."""
    status = main([name, "--out", str(out), *words])
    return status, read(out / f"gpu-{name}.jsonl")


def read(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


# --- correctness -------------------------------------------------------------------------------------


def test_correctness_has_a_row_for_every_check(tmp_path):
    words = ("--device", "cpu", "--requests", "4", "--golden", str(GOLDEN), "--processes", "1")
    status, rows = stage("correctness", tmp_path, *words, "--only", "product with w8a8")
    assert status == 0
    assert [(row["what"], row["right"], row["of"]) for row in rows] == [("product with w8a8 matrices", 4, 4)]
    assert "torch" in rows[0]["machine"]


@pytest.mark.slow
@pytest.mark.parametrize("form", QUANT_SCHEMES.values(), ids=lambda form: form.name)
def test_right_products_of_experts_are_no_wrong_row(form):
    """The rounding of activations to 8 bits is the scheme's, and no error of a product."""
    torch.manual_seed(0)
    assert _experts(CPU, form) == (3, 3)


def test_a_wrong_a_broken_and_an_ended_check_are_rows_and_fail(tmp_path):
    """Of two processes, one ends in its first check; an error does not keep the other one from its next check."""
    with Rows(tmp_path / "rows", CPU, 600) as rows:
        run_checks(rows, partial(some_checks, 4, 3, 0, 1), 2)
    by_name = {row["what"]: row for row in read(tmp_path / "rows")}
    assert rows.failed
    assert "ZeroDivisionError" in by_name["broken"]["error"]
    assert (by_name["informs"]["right"], by_name["informs"]["of"], by_name["informs"]["promised"]) == (1, 3, False)
    for name in ("dead", "right"):
        assert by_name[name]["error"] == "its process ended with exit status 7"


# --- speed -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_rates", "priced")
def test_speed_has_a_row_for_every_step_mode_and_comparison(tmp_path):
    words = ["--new-tokens", "8", "--block-sizes", "1", "4", "--together", "2"]
    status, rows = stage("speed", tmp_path, *SMALL, *words, "--model", str(GOLDEN / GOLDEN_NAMES[0]))
    assert status == 0
    steps = len(speed.BLOCK_SIZES) + len(QUANT_SCHEMES)
    assert [row["what"] for row in rows] == [
        *("rates", *["step"] * steps, *["mode"] * (1 + len(MODES)), *["answers"] * 6, *["async scheduling"] * 4)
    ]
    autoregressive, static, *drafted = (row for row in rows if row["what"] == "mode")
    assert (autoregressive["block_size"], autoregressive["tokens_per_forward"]) == (1, 1)
    assert (static["block_size"], static["times_static"], static["every_times_static"]) == (4, 1, [1])
    for row in (static, *drafted):
        assert row["times_autoregressive"] == pytest.approx(row["tokens_per_s"] / autoregressive["tokens_per_s"])
    assert {(row["right"], row["of"]) for row in rows if row["what"] == "answers"} == {(4, 4)}


def test_a_machine_without_the_device_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["speed", "--out", str(tmp_path)]) == 1
    assert "CUDA" in capsys.readouterr().err


# --- peers -------------------------------------------------------------------------------------------


def test_peers_has_a_row_for_the_engine_and_one_for_what_is_not_installed(tmp_path, monkeypatch):
    for name, token in (("mask_token_id", 1050), ("eos_token_id", 1051)):
        monkeypatch.setitem(peers._RAW, name, token)
    status, [engine, last] = stage("peers", tmp_path, *SMALL, "--new-tokens", "8")
    assert status == 0
    assert engine["tokens_per_s"] == max(engine["every"][1:]) > 0
    assert (last["what"], last["of"]) == ("left out: not installed", "lmdeploy")


# --- deterministic, service --------------------------------------------------------------------------


@pytest.mark.usefixtures("priced")
def test_deterministic_has_a_row_for_every_mode_at_every_load(tmp_path):
    words = ("--concurrency", "1", "2", "--new-tokens", "8", "--model", str(GOLDEN / GOLDEN_NAMES[0]))
    status, rows = stage("deterministic", tmp_path, *SMALL, *words)
    assert status == 0
    assert [row["concurrency"] for row in rows] == [1, 1, 1, 2, 2, 2]
    assert all(row["same"] == row["same_deterministic"] == row["of"] for row in rows)
    assert all(row["ratio"] > 0 for row in rows)


@pytest.mark.slow  # Ray Serve starts, and an engine starts again
def test_service_starts_answers_is_killed_and_has_users(tmp_path, monkeypatch):
    monkeypatch.setattr(over_http, "PAIRS", 2)
    words = ("--shapes", "demo", "--new-tokens", "8", "--together", "2", "--learn-s", "1", "--steady-s", "3")
    status, rows = stage("service", tmp_path, *SMALL, *words, "--plans", "static,fast", "--flags=--deterministic")
    assert status == 0
    start, answers, killed, *users = rows
    assert start["seconds"] > 1
    assert (answers["right"], answers["of"], answers["promised"]) == (2, 2, True)
    assert (killed["users"], killed["failed"]) == (2, 0)
    assert [(row["plan"], row["part"]) for row in users] == [
        (plan, part) for plan in ("static", "fast") for part in ("learning", "steady")
    ]
    assert all(row["failed"] == 0 for row in users)
