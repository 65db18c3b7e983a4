"""`mrp-serve determinism` on a random checkpoint: its output and its file."""

import json
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "sdar-mrp-random-b"


def test_it_counts_and_prices_both_ways(run, brief, tmp_path, capsys):
    output = tmp_path / "rows.json"
    limits = ("--prompts", 1, "--dtype", "bfloat16", "--rounds", 1, "--concurrency", 1, "--device", "cpu")
    assert run("determinism", "--model", GOLDEN, "--threads", 1, "--output", output, *limits) == 0
    rows = json.loads(output.read_text())
    assert [(row["dtype"], row["deterministic"]) for row in rows["differences"]] == [
        ("bfloat16", False),
        ("bfloat16", True),
    ]
    assert (rows["differences"][1]["differing"], rows["differences"][1]["broken"]) == (0, 0)
    assert [(row["mode"], row["concurrency"]) for row in rows["price"]] == [("static", 1), ("speculative", 1)]
    assert "speculative from static" in capsys.readouterr().out


def test_a_demo_prompt_is_a_held_out_problem(run, brief, tmp_path, capsys):
    output = tmp_path / "rows.json"
    limits = ("--prompts", 1, "--dtype", "float32", "--rounds", 0, "--device", "cpu")
    assert run("determinism", "--threads", 1, "--output", output, *limits) == 0
    assert [row["requests"] for row in json.loads(output.read_text())["differences"]] == [3, 3]
    assert "0 of 3" in capsys.readouterr().out
