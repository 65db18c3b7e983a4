"""`edit` with insertions and deletions: by hand, and against the published loop written down plainly."""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from math import log

import pytest

from service.decode.block import MASKED, Block, Pick, PositionLogprobs, Step
from service.decode.canvas import Canvas, EditTokens
from service.decode.modes import Edit
from service.decode.policy import Evaluate
from service.decode.step_map import StepMap, TokenStep
from tests.decode.oracle import masked_block
from tests.predictions import prediction_of

M, DELETE, SPLIT = MASKED, 98, 99
#: the likely tokens of `random_model`, and the others
ORDERS = tuple(permutations((0, 1, DELETE, SPLIT)))
RARE = tuple((token, 0.01 / token) for token in range(2, 60))
#: the tokens of each position with their probabilities, in descending order
Model = Callable[[Block], Sequence[Sequence[tuple[int, float]]]]


def run(block: Block, mode: Edit, model: Model) -> tuple[Canvas, list[Evaluate]]:
    canvas, queries = Canvas(block, edit_tokens=EditTokens(DELETE, SPLIT)), list[Evaluate]()
    policy, predictions = mode.decode(canvas), None
    while True:
        try:
            query = next(policy) if predictions is None else policy.send(predictions)
        except StopIteration:
            return canvas, queries
        assert isinstance(query, Evaluate)
        assert query.states == (canvas.block,)
        queries.append(query)
        likely = model(canvas.block)
        picks = []
        for position in sorted((*canvas.block.masked, *query.edit)):
            top = likely[position][: query.top_logprobs]
            logprobs = PositionLogprobs(tuple((token, log(p)) for token, p in top), (), tuple(p for _, p in top))
            picks.append(Pick(position, *likely[position][0], logprobs if top else None))
        predictions = (prediction_of(picks),)


def by_state(**likely: Sequence[Sequence[tuple[int, float]]]) -> Model:
    """The likeliest tokens of each position, for each state: its tokens as text, `_` for a mask."""
    return lambda state: likely["s" + "".join("_" if token == M else str(token) for token in state.tokens)]


def in_turn(*likely: Sequence[tuple[int, float]]) -> Model:
    """The likeliest token of each position, for one forward after the other."""
    each = iter(likely)
    return lambda _: [[entry] for entry in next(each)]


#: a token, and whether it is a mask that the block began with
Cell = tuple[int, bool]


def published(block: Block, mode: Edit, model: Model) -> tuple[tuple[int, ...], int]:
    """The published loop: the block at its end, and the forwards."""
    head = tuple(token for token in block.tokens if token != M)
    cells, budget, full = [(token, token == M) for token in block.tokens[len(head) :]], mode.max_post_edit_steps, 0
    seen, tried = list[tuple[int, ...]](), list[tuple[int, int]]()
    for forward in range(1, 1000):
        state = (*head, *(token for token, _ in cells))
        likely = model(Block(state))[len(head) :]
        first = [i for i, cell in enumerate(cells) if cell == (M, True)]
        full += not first
        last = full >= budget > 0 or (budget == 0 and not first) or forward > len(state) + budget
        masks = [i for i, (token, _) in enumerate(cells) if token == M]
        filled = masks if last else surest(masks, first, likely, mode.threshold)
        if budget == 0 and set(first) <= set(filled):
            last, filled = True, masks
        changed = [i for i, (token, _) in enumerate(cells) if token not in {M, likely[i][0][0]}]
        written = sorted((*filled, *(i for i in changed if likely[i][0][1] > mode.edit_threshold)))
        if not written:
            return state, forward
        chosen = {i: likely[i][0][0] for i in written}
        if last:
            chosen = {i: next(token for token, _ in likely[i] if token not in {DELETE, SPLIT}) for i in chosen}
            return (*head, *(chosen.get(i, token) for i, (token, _) in enumerate(cells))), forward
        if state in seen:
            least = min(chosen, key=lambda i: likely[i][0][1])
            chosen[least] = next(token for token, _ in likely[least] if (least, token) not in tried)
        seen.append(state)
        tried += chosen.items()
        cells = edited(cells, chosen)
    raise AssertionError


def surest(
    masks: list[int], first: list[int], likely: Sequence[Sequence[tuple[int, float]]], least: float
) -> list[int]:
    """The masks that are filled. `first`: those that the block began with."""
    sure = [i for i in masks if likely[i][0][1] > least]
    count = len(masks) - len(first) + 1
    if not first:
        return masks
    return sure if len(sure) >= count else sorted(masks, key=lambda i: -likely[i][0][1])[:count]


def edited(cells: list[Cell], chosen: Mapping[int, int]) -> list[Cell]:
    after = list[Cell]()
    for i, (token, is_first) in enumerate(cells):
        if chosen.get(i) == SPLIT:
            after += [(M, False), (token, is_first)]
        elif chosen.get(i) != DELETE:
            after.append((chosen.get(i, token), is_first))
    return (after + [(M, False)] * len(cells))[: len(cells)]


def random_model(seed: int, levels: int) -> Model:
    """A function of the state and the seed. The edit tokens are as likely as two others."""

    def model(state: Block) -> Sequence[Sequence[tuple[int, float]]]:
        each = []
        for position in range(len(state.tokens)):
            digest = hashlib.blake2b(repr((seed, state.tokens, position)).encode(), digest_size=2).digest()
            order, sure = ORDERS[digest[1] % len(ORDERS)], (digest[0] % levels + 1) / levels
            each.append([*((token, sure * 0.5**rank) for rank, token in enumerate(order)), *RARE])
        return each

    return model


def test_a_deleted_position_leaves_and_a_mask_fills_up() -> None:
    model = by_state(
        s___=[[(4, 0.9)], [(5, 0.9)], [(6, 0.9)]],
        s456=[[(4, 0.9)], [(DELETE, 0.8)], [(6, 0.9)]],
        s46_=[[(4, 0.9)], [(6, 0.9)], [(7, 0.1)]],
        s467=[[(4, 0.9)], [(6, 0.9)], [(7, 0.1)]],
    )
    canvas, queries = run(masked_block(3), Edit(0.5, 0.5), model)
    assert canvas.block.tokens == (4, 6, 7)
    assert [query.edit for query in queries] == [(), (0, 1, 2), (0, 1), (0, 1, 2)]
    _, deletes, fills, confirms = canvas.steps
    assert (deletes.remasked, deletes.moved, deletes.revealed) == ((1,), (0, 2, -1), ())
    assert (fills.remasked, fills.moved, [(pick.position, pick.token) for pick in fills.revealed]) == ((), (), [(2, 7)])
    assert confirms == Step("denoise")
    tokens = StepMap().add(canvas.steps)
    assert [token[:2] for token in tokens] == [(4, 1), (6, 1), (7, 2)]


def test_a_split_position_gets_a_mask_and_the_tail_is_cut() -> None:
    model = by_state(
        s8___=[[(1, 1.0)], [(4, 0.9)], [(5, 0.9)], [(6, 0.9)]],
        s8456=[[(DELETE, 1.0)], [(3, 0.8)], [(SPLIT, 0.9)], [(2, 0.8)]],
        s83_5=[[(SPLIT, 1.0)], [(3, 0.9)], [(7, 0.9)], [(5, 0.9)]],
        s8375=[[(SPLIT, 1.0)], [(3, 0.9)], [(7, 0.9)], [(5, 0.9)]],
    )
    canvas, _ = run(masked_block(4, (8,)), Edit(0.5, 0.5), model)
    assert canvas.block.tokens == (8, 3, 7, 5)
    splits = canvas.steps[1]
    assert (splits.remasked, splits.moved) == ((1, 3), (0, 1, -1, 2))
    assert [(pick.position, pick.token) for pick in splits.revealed] == [(1, 3)]
    assert sum(len(step.revealed) - len(step.remasked) for step in canvas.steps) == 3


def test_a_mask_can_be_split_and_deleted() -> None:
    canvas, queries = run(
        masked_block(3),
        Edit(0.5, 0.9),
        in_turn([(SPLIT, 0.9), (DELETE, 0.8), (5, 0.4)], *[[(3, 0.6), (4, 0.7), (5, 0.8)]] * 2),
    )
    assert canvas.block.tokens == (3, 4, 5)
    assert canvas.steps[0] == Step("denoise", moved=(-1, 0, 2))
    assert len(queries) == 3


def test_new_masks_wait_for_an_original_one() -> None:
    """Two new masks at the end are surer, so a third one is filled beside them: an original one.

    The second forward reveals its surest mask, and deletes the two tokens before it.
    """
    model = in_turn(
        [(4, 0.9), (5, 0.9), (6, 0.3), (6, 0.2)],
        [(DELETE, 0.9), (DELETE, 0.9), (6, 0.2), (7, 0.3)],
        [(1, 0.4), (7, 0.3), (2, 0.9), (2, 0.9)],
        [(1, 0.1), (7, 0.3), (2, 0.1), (2, 0.1)],
    )
    canvas, _ = run(masked_block(4), Edit(0.5, 0.5), model)
    assert [[(pick.position, pick.token) for pick in step.revealed] for step in canvas.steps] == [
        [(0, 4), (1, 5)], [(1, 7)], [(0, 1), (2, 2), (3, 2)], []
    ]  # fmt: skip
    assert canvas.block.tokens == (1, 7, 2, 2)


def test_the_last_forward_neither_inserts_nor_deletes() -> None:
    model = by_state(
        s__=[[(1, 0.9)], [(2, 0.9)]],
        s12=[[(SPLIT, 0.9), (DELETE, 0.05), (3, 0.04)], [(2, 0.9)]],
    )
    for budget in (1, 0):
        canvas, queries = run(masked_block(2), Edit(0.5, 0.0, budget), model)
        assert canvas.block.tokens == ((3, 2) if budget else (1, 2))
        assert [query.top_logprobs for query in queries] == ([0, 3] if budget else [3])
    first = canvas.steps[-1].revealed[0]
    assert (first.position, first.token, first.confidence) == (0, 1, 0.9)


def test_a_state_that_comes_again_gets_a_token_that_was_not_tried() -> None:
    """1 and 2 replace each other at the first position, which is the least sure. Then 3 comes, and stays."""
    model = by_state(
        s__=[[(1, 0.6)], [(5, 0.9)]],
        s15=[[(2, 0.6), (1, 0.2), (3, 0.1)], [(5, 0.9)]],
        s25=[[(1, 0.6), (2, 0.2), (3, 0.1)], [(5, 0.9)]],
        s35=[[(3, 0.6)], [(5, 0.9)]],
    )
    canvas, queries = run(masked_block(2), Edit(0.5, 0.5), model)
    assert canvas.block.tokens == (3, 5)
    assert [query.top_logprobs for query in queries] == [0, 0, 0, 3, 0]
    assert StepMap().add(canvas.steps) == [TokenStep(3, 4, pytest.approx(log(0.1))), TokenStep(5, 1, log(0.9))]


def test_any_model_decodes_as_by_the_published_loop() -> None:
    """In as many forwards. The counts of its steps are those of the tokens that stand, and steps lead to the block."""
    rng, moves, repeats, cut = random.Random(22), 0, 0, 0
    for seed in range(600):
        size = rng.randint(1, 9)
        block = masked_block(size, tuple(rng.choices((1, DELETE, SPLIT), k=rng.randint(0, size - 1))))
        mode = Edit(rng.choice([0.2, 0.5, 1.0]), rng.choice([0.0, 0.3, 0.6, 1.0]), rng.choice([0, 1, 2, 5, 16]))
        model = random_model(seed, rng.choice([2, 7]))
        canvas, queries = run(block, mode, model)
        assert (canvas.block.tokens, len(queries)) == published(block, mode, model)
        assert canvas.block.tokens[: block.num_leading] == block.tokens[: block.num_leading]
        assert not {DELETE, SPLIT}.intersection(canvas.block.tokens[block.num_leading :])
        replayed = block
        for step in canvas.steps:
            assert M not in [replayed.tokens[position] for position in step.remasked]
            replayed = replayed.remask(step.remasked)
            replayed = replayed.move(step.moved) if step.moved else replayed
            assert {replayed.tokens[pick.position] for pick in step.revealed} <= {M}
            replayed = replayed.reveal(step.revealed)
            moves += bool(step.moved)
            cut += bool(step.moved) and max(step.moved) < size - 1
        assert replayed == canvas.block
        assert [token.token for token in StepMap().add(canvas.steps)] == [*canvas.block.tokens[block.num_leading :]]
        repeats += sum(query.top_logprobs > 3 for query in queries)
    assert moves > 1500
    assert cut > 300
    assert repeats > 100
