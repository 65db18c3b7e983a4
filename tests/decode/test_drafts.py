"""Trees of drafts: the fast search against the plain one, budgets, ends."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.decode.block import MASKED, Block, Pick
from service.decode.canvas import Canvas, DraftBudget
from service.decode.drafts import FRESH, STALE, BestFirstSearch, Drafts, Node, most_likely, tree, worth_drafting
from service.decode.policy import Prediction, Refine
from service.decode.rules import ConfidenceAbove, TopConfidence
from tests.decode.oracle import Script, masked_block
from tests.decode.plain_tree import plain_tree
from tests.predictions import prediction_of


def oracle(seed: int, tokens: int) -> Script:
    """A function of the state and the seed, without ties."""

    def script(state: Block) -> dict[int, tuple[int, float]]:
        drawn = random.Random(repr((seed, state.tokens)))
        return {position: (drawn.randrange(tokens), drawn.uniform(0.01, 0.99)) for position in range(len(state.tokens))}

    return script


def prediction(script: Script, state: Block) -> Prediction:
    scripted = script(state)
    return prediction_of(tuple(Pick(position, *scripted[position][:2]) for position in state.masked), handle=state)


def grown(canvas: Canvas, before: Prediction, mrp: Script, budget: DraftBudget) -> tuple[Drafts, list[Refine]]:
    """The drafts, and what MRP was asked."""
    growing, refines = tree(canvas, before, TopConfidence(1), budget), list[Refine]()
    try:
        query = next(growing)
        while True:
            assert isinstance(query, Refine)
            refines.append(query)
            query = growing.send((prediction(mrp, query.state),))
    except StopIteration as stopped:
        drafts: Drafts = stopped.value
        return drafts, refines


@settings(max_examples=200)
@given(st.integers(2, 12), st.integers(1, 3), st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 5))
def test_the_search_finds_what_the_plain_one_finds(size: int, tokens: int, seed: int, states: int, steps: int) -> None:
    """Few tokens, so that readings of several states agree in some places: their ways meet."""
    backbone, mrp = oracle(seed, tokens), oracle(seed + 1, tokens)
    empty = masked_block(size)
    block = empty.reveal(TopConfidence(1)(prediction(backbone, empty)))
    budget = DraftBudget(0.0, states, steps)
    drafts, refines = grown(Canvas(block), prediction(backbone, empty), mrp, budget)
    wanted = plain_tree(block, (empty, backbone), mrp, budget)
    assert list(drafts) == [state for state, _ in wanted]
    assert [draft.gain for draft in drafts.values()] == pytest.approx([likelihood for _, likelihood in wanted])
    if block.masked[1:]:
        read = [query.state for query in refines]
        assert read == [block, *drafts][: len(read)]
        assert len(read) == min(steps, states, len(drafts) + 1)


@settings(max_examples=50)
@given(st.integers(3, 12), st.integers(0, 2**32), st.floats(0.01, 1.2))
def test_a_price_cuts_the_tree_where_a_state_promises_less(size: int, seed: int, row: float) -> None:
    """The search ends at the first state that is too dear, though states after it may promise more."""
    backbone, mrp = oracle(seed, 3), oracle(seed + 1, 3)
    empty = masked_block(size)
    block = empty.reveal(TopConfidence(1)(prediction(backbone, empty)))
    free, _ = grown(Canvas(block), prediction(backbone, empty), mrp, DraftBudget(0.0, 12))
    paid, _ = grown(Canvas(block), prediction(backbone, empty), mrp, DraftBudget(row, 12))
    worth = [draft.gain >= row for draft in free.values()]
    count = worth.index(False) if False in worth else len(worth)
    assert list(paid.items()) == list(free.items())[:count]


CONFIDENCES = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1e-30, 0.5, 1 - 1e-9, 1.0, 1.0000001]))


@given(st.lists(CONFIDENCES, min_size=2, max_size=12), st.sampled_from([FRESH, STALE]))
def test_no_pick_is_likelier_than_the_bound_by_the_two_surest(confidences: list[float], sharpness: float) -> None:
    picks = [Pick(position, 1, sure) for position, sure in enumerate(confidences)]
    node = Node(masked_block(len(confidences)), 1.0, 0, prediction_of(picks))
    BestFirstSearch(len(confidences)).rank(node, sharpness)
    bound = most_likely(confidences, sharpness)
    assert all(likelihood <= bound + 1e-12 for likelihood, _ in node.likely())
    assert bound >= 0.5


def test_with_two_picks_left_the_bound_is_the_likelihood() -> None:
    assert most_likely([0.8, 0.6], STALE) == pytest.approx(16 / (16 + 1.5**2))


def test_a_rule_of_one_token_cannot_pay_where_a_row_costs_a_token() -> None:
    budgets = [DraftBudget(0.99, 4), DraftBudget(1.0, 4), DraftBudget(0.5, 0)]
    assert [worth_drafting(TopConfidence(1), budget) for budget in budgets] == [True, False, False]
    for rule in (TopConfidence(2), ConfidenceAbove(0.9)):
        assert [worth_drafting(rule, budget) for budget in budgets] == [True, True, False]


def test_nothing_is_asked_of_mrp_where_no_state_can_follow() -> None:
    before = prediction(oracle(3, 2), masked_block(3))
    last = Block((4, MASKED, 4))
    for block, budget in ((last, DraftBudget(0.0, 4, 2)), (masked_block(3), DraftBudget(1.0, 4, 2))):
        assert grown(Canvas(block), before, oracle(4, 2), budget) == ({}, [])
