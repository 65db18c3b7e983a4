"""`edit` step by step against a scripted oracle, and against the published loop written down plainly."""

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from service.decode.block import MASKED, Block, Pick
from service.decode.canvas import Canvas
from service.decode.modes import Edit
from service.decode.step_map import StepMap, TokenStep
from tests.decode.oracle import Script, fixed, masked_block, prediction, random_oracle, run

M = MASKED


def by_state(**scripts: dict[int, tuple[int, float]]) -> Script:
    """A script for each state: the state's tokens as text, `_` for a masked position."""
    return lambda state: scripts["s" + "".join("_" if token == M else str(token) for token in state.tokens)]


def published(block: Block, mode: Edit, script: Script) -> tuple[Block, int]:
    """The published loop, and its forwards."""
    answer, posts, forwards = block.masked, 0, 0
    while True:
        masked = block.masked
        posts += not masked
        if posts > mode.max_post_edit_steps:
            return block, forwards
        forwards += 1
        read = script(block)
        sure = [position for position in masked if read[position][1] > mode.threshold]
        if masked and not sure:
            sure = [max(masked, key=lambda position: read[position][1])]
        edits = [p for p in answer if p not in masked and read[p][1] > mode.edit_threshold]
        edits = [p for p in edits if read[p][0] != block.tokens[p]]
        if not masked and not edits:
            return block, forwards
        block = block.reveal(Pick(p, *read[p][:2]) for p in (*sure, *edits))


def test_one_forward_reveals_and_replaces_and_the_last_one_confirms() -> None:
    script = by_state(
        s___={0: (1, 0.9), 1: (2, 0.6), 2: (3, 0.5)},
        s1__={0: (4, 0.8), 1: (2, 0.9), 2: (3, 0.95)},
        s423={0: (4, 1.0), 1: (5, 0.4), 2: (3, 1.0)},
    )
    done = run(masked_block(3), Edit(0.7, 0.5), script)
    assert done.tokens == (4, 2, 3)
    assert [query.edit for query in done.evaluations] == [(), (0,), (0, 1, 2)]
    first, second, last = done.canvas.steps
    assert (first.remasked, [(pick.position, pick.token) for pick in first.revealed]) == ((), [(0, 1)])
    assert (second.remasked, [(pick.position, pick.token) for pick in second.revealed]) == (
        (0,),
        [(1, 2), (2, 3), (0, 4)],
    )
    assert (last.remasked, last.revealed) == ((), ())
    steps = StepMap()
    assert [step[:2] for step in steps.add(done.canvas.steps)] == [(4, 2), (2, 2), (3, 2)]
    assert steps.num_steps == 2


def test_a_token_as_likely_as_the_edit_threshold_replaces_nothing() -> None:
    script = by_state(s_={0: (1, 0.9)}, s1={0: (2, 0.5)}, s2={0: (2, 0.9)})
    assert run(masked_block(1), Edit(0.7, 0.5), script).tokens == (1,)
    assert run(masked_block(1), Edit(0.7, 0.4), script).tokens == (2,)


def test_tokens_of_the_prompt_are_never_read() -> None:
    done = run(masked_block(4, (7, 8)), Edit(0.1, 0.0), fixed({p: (p, 1.0) for p in range(4)}))
    assert done.tokens == (7, 8, 2, 3)
    assert [query.edit for query in done.evaluations] == [(), (2, 3)]


@pytest.mark.parametrize(("steps", "token"), [(0, 1), (1, 2), (2, 1), (3, 2), (15, 2), (16, 1), (256, 1)])
def test_an_edit_back_and_forth_ends_where_the_maximum_of_steps_leaves_it(steps: int, token: int) -> None:
    script = by_state(s_={0: (1, 1.0)}, s1={0: (2, 1.0)}, s2={0: (1, 1.0)})
    done = run(masked_block(1), Edit(0.5, 0.0, steps), script)
    assert done.tokens == (token,)
    assert len(done.evaluations) == 1 + min(steps, 2)
    (last,) = StepMap().add(done.canvas.steps)
    assert last == TokenStep(token, len(done.canvas.steps), 0.0)


def test_any_model_decodes_as_by_the_published_loop_in_no_more_forwards() -> None:
    rng, saved, edits = random.Random(5), 0, 0
    for seed in range(1500):
        size, levels = rng.randint(1, 6), rng.choice([2, 7])
        block = masked_block(size, tuple(range(rng.randint(0, size - 1))))
        mode = Edit(rng.choice([0.2, 0.5, 1.0]), rng.choice([0.0, 0.4, 0.8, 1.0]), rng.choice([0, 1, 2, 5, 16]))
        script = random_oracle(seed, tokens=rng.choice([2, 5]), levels=levels)
        done, (expected, forwards) = run(block, mode, script), published(block, mode, script)
        assert done.canvas.block == expected
        assert len(done.evaluations) <= forwards
        saved += forwards - len(done.evaluations)
        edits += sum(len(step.remasked) for step in done.canvas.steps)
    assert saved > 500
    assert edits > 1000


def test_picks_that_complete_a_bad_word_together_are_put_off_and_edits_come_last() -> None:
    def first_alone(_: Block, picks: tuple[Pick, ...]) -> tuple[Pick, ...]:
        seen.append([pick.position for pick in picks])
        return picks[:1]

    seen: list[Sequence[int]] = []
    canvas, mode = Canvas(masked_block(3), without_bad_words=first_alone), Edit(0.1, 0.0, 1)
    script = by_state(
        s___=dict.fromkeys(range(3), (1, 0.9)),
        s1__={0: (2, 0.9), 1: (1, 0.9), 2: (1, 0.9)},
        s11_={0: (2, 0.9), 1: (2, 0.9), 2: (1, 0.9)},
        s111={0: (2, 0.9), 1: (2, 0.9), 2: (1, 0.9)},
    )
    policy = mode.decode(canvas)
    query = next(policy)
    with suppress(StopIteration):
        while True:
            query = policy.send((prediction(query.states[0], script, mode, edit=query.edit),))
    assert seen == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1]]
    assert canvas.block.tokens == (2, 1, 1)
