"""Every benchmark runs once at a tiny size: its progress, the columns of its rows, and what it refuses."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import forward
from benchmarks.forward import RAW

GOLDEN = Path(__file__).parents[1] / "golden" / "sdar-mrp-random-b"


def progress(output):
    """`(done, of)` of the lines of progress."""
    return [(int(done), int(of)) for done, of in re.findall(r"^(\d+)/(\d+)  \S", output, re.MULTILINE)]


@pytest.mark.usefixtures("quick_rates")
def test_speed_compares_loops_steps_and_prefixes(run, capsys, tmp_path):
    words = ["--concurrency", 1, "--concurrency", 2, "--rounds", 1, "--rows", 1, "--rows", 2, "--new-tokens", 2]
    words += ["--prompt-tokens", 8, "--prompt-tokens", 5000, "--prompt-tokens", 6000, "--prefix-tokens", 8]
    assert run("speed", "--model", GOLDEN, "--threads", 1, *words, "--out", tmp_path / "rows.json") == 0
    assert progress(capsys.readouterr().err) == [(done, 6) for done in range(1, 7)]
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert all(row["engine"] > 0 and row["plain"] > 0 for row in rows["speed"])
    assert [row["rows"] for row in rows["steps"]] == [1, 2]
    assert set(rows["steps"][0]) == {*("rows", "context", "backbone", "host", "floor", "bound", "mrp", "step", "ratio")}
    assert len(rows["prefix"]) == 2  # the longer prompts are cut to the model's limit
    assert all(min(row["without"], row["first"], row["again"]) > 0 for row in rows["prefix"])


def test_loads_compares_plans_at_a_published_shape_with_static(run, priced, capsys, tmp_path, small_shape):
    words = ["--requests", 2, "--concurrency", 1, "--rounds", 1, "--problems", 2, "--new-tokens", 4]
    words += ["--plan", "speculative mrp_steps=1", "--shape", "sdar-1.7b", "--block-size", 8]
    assert run("loads", *words, "--out", tmp_path / "rows.json") == 0
    output = capsys.readouterr()
    assert progress(output.err) == [(done, 4) for done in range(1, 5)]
    assert "1 together, to warm up, static" in output.err
    assert "1 together, round 1 of 1, speculative" in output.err
    static, speculative = json.loads((tmp_path / "rows.json").read_text())
    assert (static["times_static_cpu"], static["every_times_static_wall"], static["shape"]) == (1, [1], "sdar-1.7b")
    assert speculative["tokens_per_forward"] > 0
    assert len(speculative["samples"]) == 1


def test_evaluate_compares_plans_and_writes_rows(run, capsys, tmp_path):
    plans = ("static", "speculative mrp_steps=4", "speculative mrp_steps=4 zero", "remask threshold=0.3")
    options = [word for plan in plans for word in ("--plan", plan)]
    words = ("--problems", 4, "--together", 2, "--threads", 1, "--out", tmp_path / "rows.json")
    assert run("evaluate", *words, *options) == 0
    output = capsys.readouterr()
    assert progress(output.err) == [(done, 16) for done in range(2, 17, 2)]
    assert "2/16  answers; 0 of 4 prompts by every plan" in output.err
    assert "tokens/forward" in output.out
    static, drafted, zero, remasked = json.loads((tmp_path / "rows.json").read_text())
    assert static["tokens_per_forward"] == 1.0
    assert static["accuracy"] >= 0.75
    assert drafted["same_as_first_plan"] == zero["same_as_first_plan"] == 4
    assert drafted["tokens_per_forward"] > zero["tokens_per_forward"] > 1.3
    assert remasked["tokens_per_forward"] > 2


@pytest.mark.slow  # `evaluate` above runs the same plans; test_numbers.py has the judges
def test_text_judges_every_plan_beside_the_first(run, capsys, tmp_path):
    plans = ("static", "speculative mrp_steps=4", "remask threshold=0.3")
    options = [word for plan in plans for word in ("--plan", plan)]
    words = ("--source", "packages", "--passages", 2, "--max-new-tokens", 16, "--threads", 1)
    assert run("text", *words, *options, "--out", tmp_path / "rows.json") == 0
    assert "valid" in capsys.readouterr().out
    file, static, lossless, lossy = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert file["valid"] == 1.0
    assert static["valid_difference"] == lossless["valid_difference"] == [0.0, 0.0, 0.0]
    assert lossless["same_as_first_plan"] == 2
    assert lossless["tokens_per_forward"] > static["tokens_per_forward"]
    assert set(lossy) == set(static)


@pytest.mark.slow  # the process of an engine starts; tests/batch has the rest
def test_batch_compares_the_same_answers(run, capsys, tmp_path):
    words = ["--rounds", 1, "--lines", 4, "--plan", "dynamic threshold=0.5", "--out", tmp_path / "rows.json"]
    assert run("batch", *words) == 0
    output = capsys.readouterr()
    assert progress(output.err) == [(1, 2), (2, 2)]
    [row] = json.loads((tmp_path / "rows.json").read_text())["rounds"]
    assert row["tokens"] > 40
    assert f"{row['engine_s'] / row['batch_s']:.3f}" in output.out


def test_host_has_times_by_load(run, capsys, tmp_path):
    words = ("--model", GOLDEN, "--concurrency", 1, "--concurrency", 3, "--steps", 2)
    assert run("host", *words, "--plan", "speculative mrp_steps=1", "--out", tmp_path / "rows.json") == 0
    [row] = json.loads((tmp_path / "rows.json").read_text())
    assert set(row["microseconds"]) == {"1", "3"}
    assert min(row["microseconds"].values()) > 0
    assert progress(capsys.readouterr().err) == [(1, 2), (2, 2)]


SMALL = RAW | {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 4, "vocab_size": 1100}
SMALL |= {"mask_token_id": 1050, "eos_token_id": 1051}


@pytest.mark.slow  # prompts of thousands of tokens, however small the networks
def test_forward_has_all_ratios_of_its_table(run, monkeypatch, tmp_path):
    monkeypatch.setattr(forward, "RAW", SMALL)
    monkeypatch.setattr(forward, "_STEPS", 1)
    assert run("forward", "--rounds", 1, "--out", tmp_path / "rows.json") == 0
    limits = [row["limit"] for row in json.loads((tmp_path / "rows.json").read_text())]
    assert limits == [1.1, None, 1.0, None, 0.8, None, 0.8, None, 1.0, 1.15, 4.0, 2.0]


class TestRefusals:
    @pytest.fixture(autouse=True)
    def nothing_is_loaded(self, monkeypatch):
        for name in ("service.cli.options.ModelOptions.load", "benchmarks.options.load_in_shape"):
            monkeypatch.setattr(name, lambda *_, **__: pytest.fail("a checkpoint was loaded"))

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("evaluate", "--problems", 1201), "problems is 1201, allowed are 1 to 1200"),
            (("evaluate", "--out", "nowhere/x.json"), "out is nowhere/x.json, but nowhere is not a folder"),
            (("evaluate", "--plan", "remask threshold"), "plan is 'remask threshold', expected is text such as"),
            (("loads", "--plan", "swift"), "mode is 'swift'"),
        ],
    )
    def test_one_line_says_what_is_allowed(self, run, capsys, words, message, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        assert run(*words) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"benchmarks: {message}"), error
        assert len(error.splitlines()) == 1
