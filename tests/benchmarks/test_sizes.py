"""`python -m benchmarks.sizes`: a cell is a line of the file, and the next run goes on with the next cell."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import shapes, sizes
from benchmarks.inflated import inflate
from benchmarks.shapes import Shape
from benchmarks.throughput import PlanAtLoad, Sample
from service.decode.modes import Direct, Speculative, Static
from tests.tiny import GOLDEN, GOLDEN_NAMES

WORDS = ("--shape", "sdar-1.7b", "--weights", "float32", "--rounds", 1, "--requests", 1, "--new-tokens", 8)
PLANS = ("--plan", "speculative mrp_steps=auto", "--plan", "speculative mrp_steps=1", "--plan", "direct mrp_steps=2")


@pytest.fixture(autouse=True)
def small_shape(monkeypatch):
    """A golden checkpoint of three layers in place of the demo with its 28. The texts are the demo's."""
    monkeypatch.setitem(shapes.SHAPES, "sdar-1.7b", Shape(72, 128, 3, 4, 2, 16, 1100, 2048))
    monkeypatch.setattr(
        sizes, "inflate", lambda demo, *rest: replace(inflate(GOLDEN / GOLDEN_NAMES[0], *rest), path=Path(demo))
    )


def measure(run, file, *words):
    return run("sizes", "--output", file, *WORDS, *PLANS, "--problems", 2, "--threads", 1, *words)


def rows_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_goes_on_with_the_next_cell(run, priced, capsys, tmp_path):
    file = tmp_path / "rows.jsonl"
    assert measure(run, file, "--block-size", 8, "--concurrency", 1) == 0
    first = file.read_text()
    capsys.readouterr()
    assert measure(run, file, "--block-size", 8, "--block-size", 16, "--concurrency", 1, "--concurrency", 2) == 0
    shown = capsys.readouterr()
    assert file.read_text().startswith(first)
    cells = [(row["block_size"], row["concurrency"]) for row in rows_of(file)]
    assert cells == [(8, 1), (8, 2), (16, 1), (16, 2)]
    assert re.findall(r"^(\d+)/(\d+)  ", shown.err, re.MULTILINE)[-1] == ("24", "24")  # three cells of eight parts
    assert len(re.findall(r"^ *sdar-1.7b, float32, blocks of", shown.out, re.MULTILINE)) == 4
    for row in rows_of(file):
        assert [result["plan"].split()[0] for result in row["results"]] == ["static", *["speculative"] * 2, "direct"]
        assert row["results"][0]["times_static"] == [1.0, 1.0, 1.0]
        assert all(len(result["samples"]) == 1 for result in row["results"])
        assert row["best_fixed"] in {"static tokens_per_step=1", "speculative mrp_steps=1"}


def test_cells_of_other_options_are_refused(run, priced, capsys, tmp_path):
    file = tmp_path / "rows.jsonl"
    assert measure(run, file, "--block-size", 16, "--concurrency", 1) == 0
    assert measure(run, file, "--block-size", 16, "--concurrency", 1, "--new-tokens", 9) == 1
    assert "output has cells with new_tokens 8, not 9" in capsys.readouterr().err


def test_prompts_of_a_file_in_8_bits(run, priced, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Tom has 5 apples."}\n')
    words = ("--prompts", prompts, "--problems", 1, "--block-size", 8, "--concurrency", 1, "--weights", "int8")
    assert measure(run, tmp_path / "rows.jsonl", *words) == 0
    assert [row["weights"] for row in rows_of(tmp_path / "rows.jsonl")] == ["float32", "int8"]


@pytest.mark.parametrize(("words", "message"), [
    (("--weights", "int3"), "weights is 'int3', allowed are float32, bfloat16, int8, w8a8, fp8"),
    (("--shape", "gpt"), "shape is 'gpt', allowed are"),
])  # fmt: skip
def test_unknown_cells_are_refused(run, capsys, tmp_path, words, message):
    assert measure(run, tmp_path / "rows.jsonl", *words) == 1
    assert message in capsys.readouterr().err


def test_auto_is_compared_with_the_fastest_fixed_lossless_plan():
    def plan(mode, *seconds):
        return PlanAtLoad(mode, 1, [Sample(10, 10, time, time) for time in seconds])

    row = sizes.compared([
        plan(Static(), 4.0, 6.0, 8.0),
        plan(Speculative("auto"), 2.0, 5.0, 4.0),
        plan(Speculative(1), 2.0, 4.0, 4.0),
        plan(Speculative(2, margin=0.5), 1.0, 1.0, 1.0),
        plan(Speculative(1, threshold=0.9), 1.0, 1.0, 1.0),
        plan(Direct(2), 1.0, 1.0, 1.0),
    ])  # fmt: skip
    assert row["best_fixed"] == "speculative mrp_steps=1"
    assert row["auto_to_best_fixed"] == [1.0, 0.8, 1.0]
    assert row["results"][2]["times_static"] == [2.0, 1.5, 2.0]
