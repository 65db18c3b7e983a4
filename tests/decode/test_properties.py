"""Properties that hold for any model: random oracles, random blocks, random knobs."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from service.decode.block import Block, Pick
from service.decode.canvas import DraftBudget
from service.decode.drafts import numbers_by_rule
from service.decode.mode import DecodingMode, RuleMode
from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static
from service.decode.policy import Refine
from tests.decode.oracle import Run, Script, fixed, masked_block, mostly, random_oracle, run

SEEDS = st.integers(0, 2**32)
PLAIN = st.one_of(
    st.builds(Static, st.integers(1, 6)),
    st.builds(Dynamic, st.floats(0.05, 1)),
    st.builds(Sequential, st.integers(1, 6), st.sampled_from([0.0, 0.3, 1.0])),
    st.builds(Entropy, st.floats(0, 3)),
)
PARAMS = st.one_of(
    PLAIN,
    st.builds(Direct, st.integers(1, 6)),
    st.builds(Direct, st.integers(1, 6), st.floats(0.05, 1)),
    st.builds(Speculative, st.integers(1, 6)),
    st.builds(Speculative, st.integers(0, 6), st.integers(1, 12), st.integers(1, 3)),
    st.builds(Speculative, st.integers(0, 6), st.integers(1, 12), st.none(), st.floats(0.05, 1)),
    st.builds(Remask, st.floats(0.05, 1)),
)


#: MRP forwards and the most states, of trees and of chains
DRAFTING = st.one_of(st.tuples(st.integers(0, 12), st.integers(1, 12)), st.tuples(st.integers(1, 12), st.none()))


#: tokens before the block, few of them, so that drafts are copied from many places
TEXTS = st.lists(st.integers(0, 4), max_size=40)


@st.composite
def models(draw: st.DrawFn) -> tuple[Script, Script]:
    """A backbone, and an MRP that drafts well, mostly well or badly."""
    seed, other = draw(SEEDS), draw(SEEDS)
    truth, wild = random_oracle(seed), random_oracle(other)
    return truth, draw(st.sampled_from([truth, mostly(truth, wild, seed), wild]))


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    size = draw(st.integers(1, 12))
    return masked_block(size, tuple(draw(st.lists(st.integers(0, 4), max_size=size - 1))))


def picks(done: Run) -> list[Pick]:
    return [pick for step in done.canvas.steps for pick in step.revealed]


@settings(max_examples=250)
@given(blocks(), models(), DRAFTING, PLAIN, TEXTS)
def test_any_drafts_verified_against_any_rule_give_what_the_rule_gives(
    block: Block, model: tuple[Script, Script], drafting: tuple[int, int | None], plain: RuleMode, text: list[int]
) -> None:
    steps, max_drafts = drafting
    copied = 12 if text and max_drafts else None
    mode = Speculative(steps, max_drafts, verify=plain.name, prompt_lookup_num_tokens=copied)
    mode = replace(mode, **asdict(plain))
    wanted, done = run(block, plain, model[0]), run(block, mode, *model, text=text)
    assert picks(done) == picks(wanted)
    assert len(done.evaluations) <= len(wanted.evaluations)
    assert all(len(query.states) <= 1 + (max_drafts or steps) for query in done.evaluations)
    assert all(len(set(query.states)) == len(query.states) for query in done.evaluations)
    assert not any(state.complete for query in done.evaluations for state in query.states)
    assert mode.needs_mrp or done.refinements == []


@settings(max_examples=150)
@given(
    blocks(), SEEDS, SEEDS,
    st.builds(
        DraftBudget, st.floats(0, 1.2), st.integers(0, 12), st.integers(0, 4), device_numbers=st.just(()),
        copied=st.sampled_from([0, 2, 12]),
    ),
    st.one_of(st.builds(Static, st.integers(1, 3)), st.builds(Dynamic, st.floats(0.05, 1))),
    st.one_of(st.just(99), st.integers(1, 6)), TEXTS,
)  # fmt: skip
def test_with_any_budget_drafts_give_what_the_rule_gives_and_those_that_the_engine_leaves_out_are_not_counted(
    block: Block, seed: int, other: int, budget: DraftBudget, plain: Static | Dynamic, read: int, text: list[int]
) -> None:
    truth = random_oracle(seed)
    drafter = mostly(truth, random_oracle(other), seed)
    wanted = run(block, plain, truth)
    done = run(block, Speculative("auto", **asdict(plain)), truth, drafter, budget, read, text)
    assert picks(done) == picks(wanted)
    assert len(done.evaluations) <= len(wanted.evaluations)
    assert all(len(query.states) <= 1 + budget.states for query in done.evaluations)
    steps = done.canvas.steps
    assert all(len(step.gains) < read for step in steps)
    assert all(promised >= budget.row for step in steps for promised, _ in step.gains)
    assert sum(gained for step in steps for _, gained in step.gains) == sum(step.accepted for step in steps)
    if budget.row >= 1 and plain == Static(1):
        assert not done.refinements
        assert all(len(query.states) == 1 for query in done.evaluations)


@settings(max_examples=100)
@given(blocks(), SEEDS, PLAIN, st.integers(1, 5))
def test_drafts_by_the_rule_give_what_the_rule_gives(block: Block, seed: int, plain: RuleMode, count: int) -> None:
    """In each forward they are those that were named, as far as there are masks."""
    truth, numbers = random_oracle(seed), numbers_by_rule(plain.rule)
    budget = DraftBudget(device_numbers=numbers[min(count, len(numbers) - 1)])
    wanted = run(block, plain, truth)
    done = run(block, replace(Speculative("auto", verify=plain.name), **asdict(plain)), truth, budget=budget)
    assert picks(done) == picks(wanted)
    assert len(done.evaluations) <= len(wanted.evaluations)
    for query in done.evaluations:
        assert len(query.states) == 1 + len(query.device_numbers)
        assert set(query.device_numbers) <= set(budget.device_numbers)
        assert not any(state.complete for state in query.states)
        for state, number in zip(query.states[1:], query.device_numbers, strict=True):
            assert state.num_revealed - query.states[0].num_revealed >= number.bit_count()


EXTREME = (0.0, 5e-324, 1e-300, 1e-30, 1e-12, 0.5, math.nextafter(1.0, 0.0), 1.0, 1.0000001, math.nan)


@settings(max_examples=150)
@given(
    blocks(), SEEDS, st.lists(st.sampled_from(EXTREME), min_size=12, max_size=12),
    st.lists(st.sampled_from(EXTREME), min_size=12, max_size=12), st.integers(0, 12), st.integers(1, 12), PLAIN,
)  # fmt: skip
def test_drafting_survives_any_confidences(
    block: Block,
    seed: int,
    read: list[float],
    drafted: list[float],
    steps: int,
    drafts: int,
    plain: RuleMode,
) -> None:
    """A low temperature rounds confidences to 0 and 1. Half precision may give NaN."""

    def extreme(confidences: list[float]) -> Script:
        random = random_oracle(seed)
        return lambda state: {
            position: (token, confidences[position], 0.0) for position, (token, *_) in random(state).items()
        }

    truth, drafter = extreme(read), extreme(drafted)
    wanted = [(pick.position, pick.token) for pick in picks(run(block, plain, truth))]
    knobs = {**asdict(plain), "verify": plain.name}
    for mode, budget in (
        (Speculative(steps, drafts, **knobs), None),
        (Speculative("auto", **knobs), DraftBudget(0.0, drafts, steps)),
        (Speculative("auto", **knobs), DraftBudget(0.4, drafts, steps)),
    ):
        assert [(pick.position, pick.token) for pick in picks(run(block, mode, truth, drafter, budget))] == wanted


@settings(max_examples=50)
@given(blocks(), SEEDS, st.integers(1, 12))
def test_drafts_that_are_all_right_save_all_the_forwards_they_can(block: Block, seed: int, steps: int) -> None:
    scripted = random_oracle(seed)(block)
    done = run(block, Speculative(steps), fixed(scripted), fixed(scripted))
    assert len(done.evaluations) == 1 + math.ceil((len(block.masked) - 1) / (steps + 1))


@settings(max_examples=50)
@given(blocks(), SEEDS, SEEDS, st.integers(1, 5), st.integers(1, 12))
def test_a_tree_asks_mrp_as_often_as_it_may_and_never_twice_about_a_state(
    block: Block, seed: int, other: int, steps: int, drafts: int
) -> None:
    done = run(block, Speculative(steps, drafts), random_oracle(seed), random_oracle(other))
    states: list[Block] = []
    for query in done.queries:
        if isinstance(query, Refine):
            states.append(query.state)
        else:
            assert len(states) <= steps
            assert len(set(states)) == len(states)
            assert set(states) <= set(query.states)
            states = []


@settings(max_examples=100)
@given(blocks(), SEEDS, SEEDS, PARAMS)
def test_every_mode_completes_the_block_and_its_record_adds_up(
    block: Block, seed: int, other: int, mode: DecodingMode
) -> None:
    done = run(block, mode, random_oracle(seed), random_oracle(other))
    assert done.canvas.block.complete
    assert len(done.evaluations) <= len(block.masked)
    replayed = block
    for step in done.canvas.steps:
        positions = [pick.position for pick in step.revealed]
        assert set(positions) <= set(replayed.masked)
        assert len(set(positions)) == len(positions)
        assert step.drafted[: step.accepted] == () or [
            (p.position, p.token) for p in step.revealed[: step.accepted]
        ] == [(p.position, p.token) for p in step.drafted[: step.accepted]]
        replayed = replayed.reveal(step.revealed).remask(step.remasked)
    assert replayed == done.canvas.block


@settings(max_examples=100)
@given(blocks(), SEEDS, SEEDS, st.floats(0.05, 1))
def test_remask_keeps_a_fresh_reveal_in_every_step(block: Block, seed: int, other: int, threshold: float) -> None:
    done = run(block, Remask(threshold), random_oracle(seed), random_oracle(other))
    steps = done.canvas.steps
    for before, step in pairwise(steps):
        if step.remasked:
            assert before.kind == "denoise"
            assert set(step.remasked) < {pick.position for pick in before.revealed}


@pytest.mark.parametrize(
    "mode",
    [Static(), Dynamic(), Sequential(1, 0.5), Entropy(0.5), Direct(2), Speculative(3), Speculative(2, 6), Remask(0.5)],
)
def test_at_every_evaluation_what_is_revealed_is_final(mode: DecodingMode) -> None:
    """The engine may stop a request there and send the tokens so far."""
    for seed in range(30):
        done = run(masked_block(8), mode, random_oracle(seed), random_oracle(seed + 1000))
        for query in done.evaluations:
            state = query.states[0]
            assert all(done.tokens[p] == token for p, token in enumerate(state.tokens) if p not in state.masked)
