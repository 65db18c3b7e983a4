"""What holds for any model: random oracles, random blocks, random knobs."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.decode.block import Block, Pick
from service.decode.params import Direct, Dynamic, ModeParams, Remask, Speculative, Static
from tests.decode.oracle import Run, fixed, masked_block, mostly, random_oracle, run

SEEDS = st.integers(0, 2**32)
PARAMS = st.one_of(
    st.builds(Static, st.integers(1, 6)),
    st.builds(Dynamic, st.floats(0.05, 1)),
    st.builds(Direct, st.integers(1, 6)),
    st.builds(Speculative, st.integers(1, 6)),
    st.builds(Remask, st.floats(0.05, 1)),
)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    size = draw(st.integers(1, 12))
    return masked_block(size, tuple(draw(st.lists(st.integers(0, 4), max_size=size - 1))))


def picks(done: Run) -> list[Pick]:
    return [pick for step in done.canvas.steps for pick in step.revealed]


@settings(max_examples=300)
@given(blocks(), SEEDS, SEEDS, st.integers(1, 12), st.sampled_from(["right", "mostly", "wild"]))
def test_speculative_is_static_for_any_model_in_no_more_forwards(
    block: Block, seed: int, other: int, steps: int, quality: str
) -> None:
    truth, wild = random_oracle(seed), random_oracle(other)
    drafter = {"right": truth, "mostly": mostly(truth, wild, seed), "wild": wild}[quality]
    static = run(block, Static(), truth)
    speculative = run(block, Speculative(steps), truth, drafter)
    assert speculative.tokens == static.tokens
    assert picks(speculative) == picks(static)
    assert len(speculative.evaluations) <= len(static.evaluations)


@settings(max_examples=50)
@given(blocks(), SEEDS, st.integers(1, 12))
def test_drafts_that_are_all_right_save_all_the_forwards_they_can(block: Block, seed: int, steps: int) -> None:
    said = random_oracle(seed)(block)
    done = run(block, Speculative(steps), fixed(said), fixed(said))
    assert len(done.evaluations) == 1 + math.ceil((len(block.masked) - 1) / (steps + 1))


@settings(max_examples=200)
@given(blocks(), SEEDS, SEEDS, PARAMS)
def test_every_mode_completes_the_block_and_its_record_adds_up(
    block: Block, seed: int, other: int, params: ModeParams
) -> None:
    done = run(block, params, random_oracle(seed), random_oracle(other))
    assert done.canvas.block.complete
    assert len(done.evaluations) <= len(block.masked)
    replayed = block
    for step in done.canvas.steps:
        positions = [pick.position for pick in step.revealed]
        assert set(positions) <= set(replayed.masked)
        assert len(set(positions)) == len(positions)
        assert step.drafted[: step.accepted] == () or [p[:2] for p in step.revealed[: step.accepted]] == [
            p[:2] for p in step.drafted[: step.accepted]
        ]
        replayed = replayed.reveal(step.revealed).mask(step.revoked)
    assert replayed == done.canvas.block


@settings(max_examples=200)
@given(blocks(), SEEDS, SEEDS, st.floats(0.05, 1))
def test_remask_keeps_a_fresh_reveal_in_every_step(block: Block, seed: int, other: int, threshold: float) -> None:
    done = run(block, Remask(threshold), random_oracle(seed), random_oracle(other))
    steps = done.canvas.steps
    for before, step in pairwise(steps):
        if step.revoked:
            assert before.kind == "denoise"
            assert set(step.revoked) < {pick.position for pick in before.revealed}


@pytest.mark.parametrize("params", [Static(), Dynamic(), Direct(2), Speculative(3), Remask(0.5)])
def test_at_every_evaluation_what_is_revealed_is_final(params: ModeParams) -> None:
    """The engine may stop a request there and send what stands."""
    for seed in range(30):
        done = run(masked_block(8), params, random_oracle(seed), random_oracle(seed + 1000))
        for query in done.evaluations:
            state = query.states[0]
            assert all(done.tokens[p] == token for p, token in enumerate(state.tokens) if p not in state.masked)
