"""The benchmarks as programs: what they print and write, how far they say they are, and what they refuse."""

import inspect
import json
import re
from pathlib import Path

import pytest

from benchmarks import loads
from benchmarks.evaluate import default_variants

GOLDEN = Path(__file__).parents[1] / "golden" / "sdar-mrp-random-b"
PERFORMANCE = (Path(__file__).parents[2] / "docs" / "performance.md").read_text("utf-8")


def counts(said):
    """`(done, of)` of the lines of progress."""
    return [(int(done), int(of)) for done, of in re.findall(r"^(\d+)/(\d+)  \S", said, re.MULTILINE)]


class TestProgress:
    def test_speed_says_how_far_it_is(self, run, quick_rates, capsys):
        words = ["--concurrency", 1, "--concurrency", 2, "--rounds", 1, "--rows", 1, "--rows", 2, "--new-tokens", 2]
        words += ["--prompt-tokens", 8, "--prompt-tokens", 5000, "--prompt-tokens", 6000, "--prefix-tokens", 8]
        assert run("speed", "--model", GOLDEN, "--threads", 1, *words) == 0
        assert counts(capsys.readouterr().err) == [(done, 6) for done in range(1, 7)]

    def test_loads_says_how_far_it_is(self, run, priced, capsys):
        words = ["--requests", 2, "--concurrency", 1, "--rounds", 1, "--plan", "speculative mrp_steps=1"]
        assert run("loads", *words, "--problems", 2) == 0
        said = capsys.readouterr().err
        assert counts(said) == [(done, 4) for done in range(1, 5)]
        assert "1 together, to warm up, static" in said
        assert "1 together, round 1 of 1, speculative" in said

    def test_evaluate_says_how_far_it_is_before_the_first_chunk_is_through(self, run, capsys):
        words = ["--problems", 4, "--together", 2, "--plan", "static", "--plan", "dynamic threshold=0.5"]
        assert run("evaluate", "--threads", 1, *words) == 0
        said = capsys.readouterr().err
        assert counts(said) == [(done, 8) for done in (2, 4, 6, 8)]
        assert "2/8  answers; 0 of 4 prompts by every plan" in said

    def test_batch_compares_the_same_answers(self, run, capsys, tmp_path):
        words = ["--rounds", 1, "--lines", 4, "--plan", "dynamic threshold=0.5", "--output", tmp_path / "rows.json"]
        assert run("batch", *words) == 0
        shown = capsys.readouterr()
        assert counts(shown.err) == [(1, 2), (2, 2)]
        [measured] = json.loads((tmp_path / "rows.json").read_text())["rounds"]
        assert measured["tokens"] > 40
        assert f"{measured['engine_s'] / measured['batch_s']:.3f}" in shown.out


class TestEvaluate:
    def test_compares_plans_and_writes_rows(self, run, capsys, tmp_path):
        plans = ("static", "speculative mrp_steps=4", "speculative mrp_steps=4 zero", "remask threshold=0.3")
        options = [word for plan in plans for word in ("--plan", plan)]
        assert run("evaluate", "--problems", 8, "--output", tmp_path / "rows.json", *options) == 0
        assert "tokens/forward" in capsys.readouterr().out
        static, drafted, zero, remasked = json.loads((tmp_path / "rows.json").read_text())
        assert static["tokens_per_forward"] == 1.0
        assert static["accuracy"] >= 0.75
        assert drafted["same_as_first_plan"] == zero["same_as_first_plan"] == 8
        assert drafted["tokens_per_forward"] > zero["tokens_per_forward"] > 1.3
        assert remasked["tokens_per_forward"] > 2

    def test_the_table_of_modes_has_the_rows_that_it_prints(self):
        table = PERFORMANCE.split("| mode | accuracy | tokens/forward | ms/token |", 1)[1].split("\n\n", 1)[0]
        rows = re.findall(r"^\| `(\w+)`(.*?) \|", table, re.MULTILINE)
        plans = [variant for variant in default_variants(with_mrp=True) if variant.engine == "mrp"]
        assert [mode for mode, _ in rows] == [plan.mode.name for plan in plans]
        for (_, knobs), plan in zip(rows, plans, strict=True):
            assert set(knobs.split()) <= set(plan.name.split())


class TestRefusals:
    @pytest.fixture(autouse=True)
    def nothing_is_loaded(self, monkeypatch):
        for name in (
            "service.cli.options.ModelOptions.load",
            "benchmarks.loads.load_in_shape",
            "benchmarks.speed.load_in_shape",
        ):
            monkeypatch.setattr(name, lambda *_, **__: pytest.fail("a checkpoint was loaded"))

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("evaluate", "--problems", 1201), "problems is 1201, allowed are 1 to 1200"),
            (("text", "--passages", 10**6), "passages is 1000000, allowed are 1 to "),
            (("evaluate", "--output", "nowhere/x.json"), "output is nowhere/x.json, but nowhere is not a folder"),
            (("evaluate", "--plan", "remask threshold"), "plan is 'remask threshold', expected is text such as"),
            (("loads", "--problems", 1201), "problems is 1201, allowed are 1 to 1200"),
            (("loads", "--plan", "swift"), "mode is 'swift'"),
            (("speed", "--output", "nowhere/x.json"), "output is nowhere/x.json, but nowhere is not a folder"),
        ],
    )
    def test_one_line_says_what_is_allowed(self, run, capsys, words, said, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        assert run(*words) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"benchmarks: {said}"), error
        assert len(error.splitlines()) == 1

    @pytest.mark.parametrize(
        ("name", "option"), [("speed", "concurrency"), ("speed", "rows"), ("loads", "concurrency")]
    )
    def test_none_of_something_is_refused(self, run, capsys, name, option):
        assert run(name, f"--{option}", 0) == 2
        assert f"--{option}" in capsys.readouterr().err


def test_loads_says_one_default_of_threads():
    threads = inspect.signature(loads.command, eval_str=True).parameters["threads"]
    assert "half the cores" not in threads.annotation.__metadata__[0].help
    assert threads.default == 1
