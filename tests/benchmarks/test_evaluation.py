"""The evaluation's sums, on a golden checkpoint with a made-up checker."""

from pathlib import Path

import pytest

from benchmarks.evaluate import default_variants
from benchmarks.evaluation import Variant, evaluate
from service.decode.modes import MODES, Dynamic, Speculative, Static
from service.engine import Engine, SamplingParams
from service.model import LoadOptions, load_checkpoint
from service.quality.calibration.prompts import PromptTask

FOLDER = Path(__file__).parents[1] / "golden" / "sdar-mrp-random-a"


@pytest.fixture(scope="module")
def engines():
    return {
        "mrp": Engine(load_checkpoint(FOLDER)),
        "zero": Engine(load_checkpoint(FOLDER, LoadOptions(mrp_zero=True))),
    }


def test_scores_are_summed_over_chunks_and_compared_with_the_first_plan(engines):
    tasks = [PromptTask((number, 7, 9), lambda answer, number=number: number < 2) for number in range(5)]
    plans = [Variant(Static()), Variant(Speculative(2)), Variant(Speculative(2), "zero"), Variant(Dynamic(0.2))]
    *_, scores = evaluate(engines, tasks, plans, SamplingParams(), (12, 2))
    static, speculative, zero, dynamic = scores
    assert [len(score.completions) for score in scores] == [5] * 4
    assert static.accuracy == dynamic.accuracy == 0.4
    assert static.same_as_first == speculative.same_as_first == zero.same_as_first == 5
    assert dynamic.same_as_first < 5
    assert static.tokens_per_forward <= 1 < dynamic.tokens_per_forward
    assert static.acceptance is None
    assert 0 <= speculative.acceptance <= 1
    assert speculative.completions[0].stats.drafts_proposed > 0
    assert all(score.milliseconds_per_token > 0 for score in scores)


def test_zero_really_takes_mrp_out(engines):
    task = PromptTask((3, 7, 9), lambda answer: True)
    plans = [Variant(Speculative(4)), Variant(Speculative(4), "zero")]
    *_, scores = evaluate(engines, [task], plans, SamplingParams(), (24, 1))
    drafts = [[s.drafted for b in score.completions[0].blocks for s in b.steps] for score in scores]
    assert drafts[0] != drafts[1]
    assert scores[0].completions[0].token_ids == scores[1].completions[0].token_ids


def test_the_published_loops_take_a_forward_more_for_every_block_and_drafting_two(engines):
    task = PromptTask((3, 7, 9), bool)
    *_, scores = evaluate(engines, [task], [Variant(Static()), Variant(Speculative(4))], SamplingParams(), (13, 1))
    for score, more in zip(scores, (1, 2), strict=True):
        [completion] = score.completions
        count = completion.stats.forwards
        forwards = count.denoise + count.verify + more * len(completion.blocks)
        assert score.tokens_per_published_forward == completion.stats.decoded_tokens / forwards


def test_the_default_plans_put_zero_beside_every_mrp_row():
    plans = default_variants(with_mrp=True)
    assert isinstance(plans[0].mode, Static)
    with_mrp = [plan.mode for plan in plans if plan.mode.needs_mrp and plan.engine == "mrp"]
    assert with_mrp == [plan.mode for plan in plans if plan.engine == "zero"]
    assert not any(plan.mode.needs_mrp for plan in default_variants(with_mrp=False))


def test_the_default_plans_are_of_every_mode_that_the_checkpoint_serves():
    assert {plan.mode.name for plan in default_variants(with_mrp=True)} == set(MODES)
    served = {name for name, mode in MODES.items() if mode.served_without_mrp}
    assert {plan.mode.name for plan in default_variants(with_mrp=False)} == served


def test_scores_are_told_after_every_plans_turn(engines):
    tasks, plans = (
        [PromptTask((3, 7, 9), bool), PromptTask((4, 5), bool), PromptTask((6,), bool)],
        [Variant(Static()), Variant(Dynamic(0.2))],
    )
    turns = evaluate(engines, tasks, plans, SamplingParams(), (6, 2))
    done = [[len(score.completions) for score in scores] for scores in turns]
    assert done == [[2, 0], [2, 2], [3, 2], [3, 3]]
