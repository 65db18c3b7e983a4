"""The step map: counted by hand, and the same for drafts as for the rule that verifies them."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from service.decode.block import Block, Pick, PositionLogprobs, Step
from service.decode.mode import RuleMode
from service.decode.modes import Direct, Remask, Speculative
from service.decode.step_map import StepMap, TokenStep, logprob_of
from tests.decode.oracle import Script, prediction, random_oracle, run
from tests.decode.test_properties import DRAFTING, PLAIN, SEEDS, blocks, models


def steps_of(*steps: Step) -> list[tuple[int, int]]:
    return [token[:2] for token in StepMap().add(steps)]


def counted_by_hand(block: Block, plain: RuleMode, script: Script) -> list[TokenStep]:
    """The rule applied until nothing is masked. Position after position: what was revealed, when, how likely."""
    expected: dict[int, TokenStep] = {}
    number = 0
    while not block.complete:
        number += 1
        picks = plain.rule(prediction(block, script, plain))
        expected |= {pick.position: TokenStep(pick.token, number, math.log(pick.confidence)) for pick in picks}
        block = block.reveal(picks)
    return [expected[position] for position in sorted(expected)]


@settings(max_examples=150)
@given(blocks(), models(), DRAFTING, PLAIN)
def test_drafts_have_the_step_map_of_the_rule_which_is_counted_by_hand(
    block: Block, model: tuple[Script, Script], drafting: tuple[int, int | None], plain: RuleMode
) -> None:
    wanted = counted_by_hand(block, plain, model[0])
    assert StepMap().add(run(block, plain, model[0]).canvas.steps) == wanted
    mode = replace(Speculative(*drafting, verify=plain.name), **asdict(plain))
    assert StepMap().add(run(block, mode, *model).canvas.steps) == wanted


@settings(max_examples=50)
@given(blocks(), SEEDS, SEEDS, st.integers(1, 6))
def test_in_direct_every_pick_is_a_step_of_its_own(block: Block, seed: int, other: int, steps: int) -> None:
    done = run(block, Direct(steps), random_oracle(seed), random_oracle(other))
    numbers = [token.step for token in StepMap().add(done.canvas.steps)]
    assert sorted(numbers) == list(range(1, len(block.masked) + 1))


@settings(max_examples=50)
@given(blocks(), SEEDS, SEEDS, st.floats(0.05, 1))
def test_in_remask_the_forward_that_counted_is_the_last(block: Block, seed: int, other: int, threshold: float) -> None:
    done = run(block, Remask(threshold), random_oracle(seed), random_oracle(other))
    step_map = StepMap().add(done.canvas.steps)
    assert [token.token for token in step_map] == [done.tokens[position] for position in block.masked]
    forwards = len(done.evaluations)
    assert max((token.step for token in step_map), default=0) == forwards
    # every forward leaves one token at least, so every number occurs
    assert {token.step for token in step_map} == set(range(1, forwards + 1))


def test_the_step_that_fixed_a_token_counts() -> None:
    first = Step("denoise", (Pick(3, 30, 0.5), Pick(2, 20, 0.25)))
    again = Step("denoise", (Pick(2, 21, 0.125),))
    tokens = StepMap().add([first, Step("mrp", remasked=(2,)), again])
    assert tokens == [TokenStep(21, 2, math.log(0.125)), TokenStep(30, 1, math.log(0.5))]
    assert StepMap().add([first, Step("mrp", remasked=(2,))]) == [TokenStep(30, 1, math.log(0.5))]


def test_a_token_that_moves_keeps_its_step() -> None:
    first = Step("denoise", tuple(Pick(position, 10 + position, 0.5) for position in range(3)))
    moves = Step("denoise", (Pick(3, 40, 0.25),), remasked=(1,), moved=(0, -1, 2, -1))
    assert steps_of(first, moves, Step("denoise", moved=(1, 2, 3, -1))) == [(12, 1), (40, 2)]


def test_a_verified_forward_is_as_many_steps_as_it_stands_for() -> None:
    picks = tuple(Pick(position, 10 + position, 0.5) for position in (2, 0, 1, 3))
    assert steps_of(Step("verify", picks, sizes=(1, 2, 1))) == [(10, 2), (11, 2), (12, 1), (13, 3)]
    assert steps_of(Step("verify", picks)) == [(10, 1), (11, 1), (12, 1), (13, 1)]


def test_numbers_go_on_over_the_blocks() -> None:
    counted = StepMap()
    assert [token.step for token in counted.add([Step("denoise", (Pick(1, 5, 1.0),)) for _ in range(2)])] == [2]
    assert [token.step for token in counted.add([Step("denoise", (Pick(0, 5, 1.0),))])] == [3]
    assert counted.num_steps == 3


def test_a_forced_token_is_of_the_step_before_it() -> None:
    forced = Step("forced", (Pick(0, 1, 1.0), Pick(1, 2, 1.0)))
    step = Step("verify", (Pick(2, 3, 0.5), Pick(4, 5, 0.5)), sizes=(1, 1))
    between = Step("forced", (Pick(3, 4, 1.0), Pick(5, 6, 1.0)))
    counted = StepMap()
    assert [token.step for token in counted.add([forced, step, between])] == [0, 0, 1, 1, 2, 2]
    assert [token.step for token in counted.add([forced, step, between])] == [2, 2, 3, 3, 4, 4]


def test_log_probabilities_are_not_rounded() -> None:
    sure = Pick(0, 7, 1 - 2**-24)
    assert logprob_of(sure) == pytest.approx(-(2**-24), rel=1e-6)
    assert logprob_of(replace(sure, logprobs=PositionLogprobs(((6, -1.0), (7, -1e-9))))) == -1e-9
    assert logprob_of(Pick(0, 7, 0.0)) == logprob_of(Pick(0, 7, math.nan)) == -9999.0
    assert logprob_of(Pick(0, 7, 1.0000001)) == 0.0
