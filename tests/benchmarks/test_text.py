"""Continuations of source files: their judges, their passages, and the table of plans."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.judges import LikelihoodJudge, distinct_bigrams, mean_difference, parses
from benchmarks.text import draw, package_files
from service.errors import CheckpointError, SettingsError

FUNCTION = "def total(values):\n" + "    values = list(values)  # a copy\n" * 5 + "    return sum(values) + 1\n" * 8


@pytest.mark.parametrize(
    ("continuation", "valid"),
    [
        ("    return x\n", True),
        ("    if x:\n", True),  # the block comes next
        ("    total = (1 +\n", True),  # the bracket closes later
        ('    """A text that goes on.\n', True),
        ("    return x\n  y = 2\n", False),  # an indent that no block has
        ("    return return\n", False),
        ("    x = )\n", False),
        ("    return x\n    return return", True),  # its last line is not whole
    ],
)
def test_the_whole_lines_of_a_continuation_must_parse(continuation, valid):
    assert parses("def f(x):\n", continuation) is valid


def test_repeated_bigrams_count_once():
    assert distinct_bigrams([1, 2, 3, 4]) == 1
    assert distinct_bigrams([1, 2, 1, 2, 1]) == 0.5
    assert math.isnan(distinct_bigrams([1]))


def test_a_difference_is_paired_and_has_an_interval():
    first = [float(number % 7) for number in range(200)]
    above = mean_difference([value + 0.5 for value in first], first)
    assert above == pytest.approx((0.5, 0.5, 0.5))
    mixed = mean_difference([value + (-1) ** index for index, value in enumerate(first)], first)
    assert mixed.low < mixed.mean == 0 < mixed.high < 0.2
    assert mean_difference([math.nan, 2.0], [1.0, 1.0]).mean == 1


class TestLikelihood:
    @pytest.fixture
    def judge(self, monkeypatch):
        """A judge of characters, for which each character is as likely as its code's last digit says."""
        weights = torch.arange(128).remainder(10).add(1.0)
        model = SimpleNamespace(
            eval=lambda: lambda ids: SimpleNamespace(logits=weights.log().expand(1, ids.shape[1], 128))
        )
        tokenizer = lambda text, **_: SimpleNamespace(input_ids=[ord(letter) for letter in text])  # noqa: E731
        monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: model)
        monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: tokenizer)
        return LikelihoodJudge(Path("anywhere"))

    def test_only_the_continuation_counts(self, judge):
        total = math.log(float(torch.arange(128).remainder(10).add(1.0).sum()))
        expected = total - (math.log(ord("b") % 10 + 1) + math.log(ord("c") % 10 + 1)) / 2
        assert judge.nats_per_character("aaaa", "bc") == pytest.approx(expected, abs=1e-5)
        assert math.isnan(judge.nats_per_character("aaaa", ""))


def test_a_judge_that_is_none_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        LikelihoodJudge(tmp_path)


class TestPassages:
    def test_begin_with_a_statement_and_are_the_same_for_a_seed(self):
        texts = [FUNCTION + FUNCTION.replace("total", f"total{number}") for number in range(9)]
        drawn = draw(5, 3, texts)
        assert drawn == draw(5, 3, texts) != draw(5, 4, texts)
        for passage in drawn:
            assert passage.prompt.startswith("def total")
            assert passage.prompt.endswith("\n")
            assert parses(passage.prompt, passage.continuation)
            assert any(passage.prompt + passage.continuation in text for text in texts)

    def test_installed_packages_have_enough(self):
        assert len(draw(200, 0, package_files())) == 200

    def test_short_or_broken_files_have_none(self):
        with pytest.raises(SettingsError, match="allowed are 1 to 0"):
            draw(1, 0, ["def f(): pass", "def :"])


def test_every_plan_is_compared_with_the_first(run, capsys, tmp_path):
    plans = ("static", "speculative mrp_steps=4", "remask threshold=0.3")
    options = [word for plan in plans for word in ("--plan", plan)]
    words = ("--source", "packages", "--passages", 4, "--max-new-tokens", 16, "--threads", 1)
    assert run("text", *words, *options, "--output", tmp_path / "rows.json") == 0
    assert "valid" in capsys.readouterr().out
    content = json.loads((tmp_path / "rows.json").read_text())
    own, static, lossless, lossy = content["rows"]
    assert own["valid"] == 1.0
    assert static["valid_difference"] == lossless["valid_difference"] == [0.0, 0.0, 0.0]
    assert lossless["same_as_first_plan"] == 4
    assert lossless["tokens_per_forward"] > static["tokens_per_forward"]
    assert set(lossy) == set(static)
