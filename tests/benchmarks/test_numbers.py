"""The numbers that benchmarks publish: scores, ratios, medians, floors, intervals and judgements of text."""

import gc
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.evaluation import Variant, evaluate
from benchmarks.floor import ForwardNeed, Need, forward_need
from benchmarks.judges import LikelihoodJudge, distinct_bigrams, mean_difference, parses
from benchmarks.machine import Rates
from benchmarks.shapes import shape_named
from benchmarks.text import Passage, begun_again
from benchmarks.throughput import PlanAtLoad, Sample, plans_at_load
from service.decode.modes import Dynamic, Speculative, Static
from service.engine import Engine, SamplingParams
from service.errors import CheckpointError
from service.ipc.connections import tune_interpreter
from service.model import load_checkpoint, parse_config
from service.quality.calibration.prompts import PromptTask
from tests.tiny import GOLDEN, tiny_config

FOLDER = GOLDEN / "sdar-mrp-random-a"


# --- scores of plans -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engines():
    zero = load_checkpoint(FOLDER)
    zero.mrp.scale = 0.0
    return {"mrp": Engine(load_checkpoint(FOLDER)), "zero": Engine(zero)}


def test_scores_are_summed_over_chunks_and_compared_with_the_first_plan(engines):
    tasks = [PromptTask((number, 7, 9), lambda answer, number=number: number < 2) for number in range(5)]
    variants = [Variant(Static()), Variant(Speculative(2)), Variant(Speculative(2), "zero"), Variant(Dynamic(0.2))]
    *_, scores = evaluate(engines, tasks, variants, SamplingParams(), (12, 2))
    static, speculative, zero, dynamic = scores
    assert static.accuracy == dynamic.accuracy == 0.4
    assert static.same_as_first == speculative.same_as_first == zero.same_as_first == 5
    assert dynamic.same_as_first < 5
    assert static.tokens_per_forward <= 1 < dynamic.tokens_per_forward
    assert static.acceptance is None
    assert 0 <= speculative.acceptance <= 1
    assert all(score.milliseconds_per_token > 0 for score in scores)
    for score, more in ((static, 1), (speculative, 2)):  # the published loops' further forwards of a block
        counts = [completion.stats.forwards for completion in score.completions]
        forwards = sum(count.denoise + count.verify for count in counts)
        forwards += more * sum(len(completion.blocks) for completion in score.completions)
        assert score.tokens_per_published_forward == score.tokens / forwards


# --- plans at loads ----------------------------------------------------------------------------------------


def test_ratios_are_of_the_same_round():
    static, fast = PlanAtLoad(Static(), 1), PlanAtLoad(Speculative(), 1)
    for slowed in (1.0, 10.0, 3.0):
        static.samples.append(Sample(100, 100, 2.0 * slowed, 6.0 * slowed))
        fast.samples.append(Sample(100, 50, 1.0 * slowed, 2.0 * slowed))
    assert fast.times_faster(static) == (2.0, 3.0)
    assert fast.tokens_per_forward == 2
    with_mrp, without = plans_at_load(True), plans_at_load(False)
    assert with_mrp[:2] == without[:2] == [Static(), Speculative("auto")]
    assert not any(plan.needs_mrp for plan in without)


# --- steps beside their floor --------------------------------------------------------------------------------


def test_a_forward_moves_its_weights_once_and_every_rows_keys():
    """The 1.7B shape in bfloat16, by hand: 1.72 G parameters behind the embedding, 112 KiB of keys a token."""
    config = parse_config(tiny_config() | asdict(shape_named("sdar-1.7b")))
    single, many = forward_need(config, 1, 0, 2), forward_need(config, 64, 1024, 2)
    assert single.moved == pytest.approx(2 * 1.72e9, rel=0.01)
    assert single.flops == pytest.approx(4 * 2 * 1.72e9, rel=0.01)
    logits = 63 * 4 * 151936 * 2
    assert many.moved - single.moved - logits == pytest.approx(64 * 1028 * 112 * 1024, rel=0.01)
    assert many.flops > 64 * single.flops
    eight_bits = forward_need(replace(config, quantization="w8a8"), 1, 0, 2)
    matrices = 1.72e9 - config.hidden_size * config.vocab_size
    assert single.moved - eight_bits.moved == pytest.approx(matrices, rel=0.02)


def test_experts_are_moved_as_often_as_tokens_choose_them():
    """By hand: 48 layers with experts of 4.72 M parameters, 18.9 M of attention and a router of 0.26 M."""
    config = parse_config(tiny_config() | asdict(shape_named("sdar-30b-a3b")))
    single, many = forward_need(config, 1, 0, 2), forward_need(config, 512, 0, 2)
    head, rest = 2048 * 151936, 48 * (18.87e6 + 0.26e6)
    assert single.flops == pytest.approx(4 * 2 * (head + rest + 48 * 8 * 4.72e6), rel=0.01)
    chosen = 128 * (1 - (1 - 8 / 128) ** 4)
    assert single.moved == pytest.approx(2 * (head + rest + 48 * chosen * 4.72e6), rel=0.01)
    beside = 2 * (512 * 4 * 151936 + 2 * 48 * 512 * 512 * 4)
    assert many.moved - beside == pytest.approx(2 * (head + rest + 48 * 128 * 4.72e6), rel=0.01)


def test_phases_run_one_after_another_and_each_has_a_bound_of_its_own():
    rates = Rates(bytes_per_s=100.0, flops_per_s=1000.0)
    memory, arithmetic = Need(200, 1000), Need(200, 5000)
    assert (memory.seconds(rates), arithmetic.seconds(rates)) == (2.0, 5.0)
    mixed = ForwardNeed(products=arithmetic, attention=memory, head=memory)
    assert (mixed.seconds(rates), mixed.bound(rates)) == (9.0, "arithmetic")
    assert (mixed.moved, mixed.flops) == (600, 7000)
    assert ForwardNeed(arithmetic, Need(600, 0), memory).bound(rates) == "memory"


# --- delays of an event loop ---------------------------------------------------------------------------------


def test_collections_leave_out_loaded_objects_and_threads_share_python(monkeypatch):
    settings = dict[str, object]()
    monkeypatch.setattr(gc, "freeze", lambda: settings.update(frozen=True))
    monkeypatch.setattr(gc, "set_threshold", lambda *counts: settings.update(thresholds=counts))
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: settings.update(seconds=seconds))
    tune_interpreter()
    young, middle, _ = gc.get_threshold()
    assert settings["frozen"]
    assert settings["seconds"] < 0.005
    assert settings["thresholds"][:2] == (young, middle)
    assert settings["thresholds"][2] > 10


# --- judges of text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("continuation", "valid"),
    [
        ("    return x\n", True),
        ("    return x\n  y = 2\n", False),  # an indent that no block has
        ("    return x\n    return return", True),  # its last line is not whole
    ],
)
def test_the_whole_lines_of_a_continuation_must_parse(continuation, valid):
    assert parses("def f(x):\n", continuation) is valid


def test_repeated_bigrams_count_once():
    assert distinct_bigrams([1, 2, 1, 2, 1]) == 0.5
    assert math.isnan(distinct_bigrams([1]))


def test_a_difference_is_paired_and_has_an_interval():
    first = [float(number % 7) for number in range(200)]
    assert mean_difference([value + 0.5 for value in first], first) == pytest.approx((0.5, 0.5, 0.5))
    mixed = mean_difference([value + (-1) ** index for index, value in enumerate(first)], first)
    assert mixed.low < mixed.mean == 0 < mixed.high < 0.2
    assert mean_difference([math.nan, 2.0], [1.0, 1.0]).mean == 1


def test_the_likelihood_is_of_the_continuation_alone(monkeypatch, tmp_path):
    """A judge of characters, for which each character is as likely as its code's last digit says."""
    weights = torch.arange(128).remainder(10).add(1.0)
    model = SimpleNamespace(eval=lambda: lambda ids: SimpleNamespace(logits=weights.log().expand(1, ids.shape[1], -1)))
    tokenizer = lambda text, **_: SimpleNamespace(input_ids=[ord(letter) for letter in text])  # noqa: E731
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        LikelihoodJudge(tmp_path)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: model)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: tokenizer)
    judge = LikelihoodJudge(Path("anywhere"))
    expected = math.log(float(weights.sum())) - (math.log(ord("b") % 10 + 1) + math.log(ord("c") % 10 + 1)) / 2
    assert judge.nats_per_character("aaaa", "bc") == pytest.approx(expected, abs=1e-5)
    assert math.isnan(judge.nats_per_character("aaaa", ""))


@pytest.mark.parametrize(("renamed", "name"), [(False, "area"), (True, "new_area")])
def test_a_passage_begins_once_more_perhaps_with_another_name(renamed, name):
    passage = begun_again(Passage("def area(side):\n", "    return side**2\n\n"), renamed=renamed)
    assert passage.prompt == f"def area(side):\n    return side**2\n\n\n\ndef {name}(side):\n"
    assert passage.continuation == "    return side**2\n\n"
