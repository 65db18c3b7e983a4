"""`speculative` with a margin: which drafted steps are accepted, and that nothing else changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from service.decode.block import MASKED, Block, Draft, Pick
from service.decode.canvas import BlockGrammar, Canvas, DraftBudget
from service.decode.mode import RuleMode
from service.decode.modes import Speculative, Static
from service.decode.modes.speculative import accept_within_margin
from service.decode.registry import leaves_drafts_open, only_drafts
from service.decode.rules import LeftToRight, TopConfidence
from tests.decode.oracle import fixed, masked_block, mostly, random_oracle, run
from tests.decode.test_properties import PLAIN, SEEDS, blocks, picks
from tests.predictions import likeliest, prediction_of

M = MASKED
ONE = LeftToRight(1)


def near_pick(token: int, sure: float, second: int, chance: float, position: int = 0) -> Pick:
    """What a greedy reading says of a position: its token, and the second one."""
    return Pick(position, token, sure, likeliest((token, sure), (second, chance)))


def near(prediction: list[Pick], drafted: tuple[Pick, ...], margin: float, rule: object = ONE) -> tuple[Pick, ...]:
    """What is picked at a masked block, beside one drafted step."""
    block = masked_block(len(prediction))
    choose = accept_within_margin(Canvas(block), rule, {block.reveal(drafted): Draft(1, drafted)}, margin)  # type: ignore[arg-type]
    return choose(prediction_of(tuple(prediction)), block)


GREEDY = near_pick(7, 0.5, 8, 0.4)
#: the prediction drew 9, which is neither of the two likeliest tokens
SAMPLED = Pick(0, 9, 0.1, likeliest((7, 0.5), (8, 0.4)))


@pytest.mark.parametrize(
    ("predicted", "drafted", "margin", "token", "confidence"),
    [
        (GREEDY, 8, 0.79, 8, 0.4), (GREEDY, 8, 0.81, 7, 0.5), (GREEDY, 8, 1.0, 7, 0.5), (SAMPLED, 7, 0.79, 7, 0.5),
        (SAMPLED, 8, 0.79, 8, 0.4), (SAMPLED, 7, 0.81, 9, 0.1), (SAMPLED, 8, 0.81, 9, 0.1),
    ],
)  # fmt: skip
def test_one_of_two_likeliest_tokens_is_accepted_if_the_second_has_more_than_the_margins_share_of_the_first(
    predicted: Pick, drafted: int, margin: float, token: int, confidence: float
) -> None:
    (pick,) = near([predicted], (Pick(0, drafted, 0.9),), margin)
    assert (pick.token, pick.confidence) == (token, pytest.approx(confidence))
    assert pick.logprobs == predicted.logprobs


class TestPlaces:
    """The rule reveals the surest position. Another one may be nearly as sure."""

    READING = (near_pick(10, 0.8, 99, 0.01, 0), near_pick(11, 0.7, 12, 0.65, 1), near_pick(13, 0.2, 14, 0.1, 2))

    @pytest.mark.parametrize(
        ("position", "token", "margin", "accepted"),
        [(1, 11, 0.8, True), (1, 11, 0.9, False), (1, 12, 0.8, True), (1, 12, 0.82, False), (2, 13, 0.3, False)],
    )
    def test_a_token_elsewhere_is_compared_with_the_rules_own(
        self, position: int, token: int, margin: float, accepted: bool
    ) -> None:
        (pick,) = near(list(self.READING), (Pick(position, token, 0.9),), margin, TopConfidence(1))
        assert (pick.position, pick.token) == ((position, token) if accepted else (0, 10))

    def test_of_several_picks_the_least_sure_counts(self) -> None:
        prediction = list(self.READING)
        drafted = (Pick(0, 10, 0.9), Pick(2, 13, 0.9))
        assert [pick.position for pick in near(prediction, drafted, 0.28, TopConfidence(2))] == [0, 2]
        assert [pick.position for pick in near(prediction, drafted, 0.29, TopConfidence(2))] == [0, 1]

    def test_a_revealed_position_is_no_step(self) -> None:
        block, drafted = Block((10, M)), (Pick(0, 10, 0.9), Pick(1, 12, 0.9))
        prediction = prediction_of((near_pick(11, 0.5, 12, 0.49, 1),))
        choose = accept_within_margin(Canvas(block), ONE, {block.reveal(drafted): Draft(1, drafted)}, 0.5)
        assert choose(prediction, block)[0].token == 11

    def test_the_rules_own_step_comes_first_and_then_the_likeliest_draft(self) -> None:
        block, prediction = (
            masked_block(2),
            prediction_of((near_pick(7, 0.5, 8, 0.45, 0), near_pick(7, 0.5, 8, 0.45, 1))),
        )
        second, other = (Pick(0, 8, 0.9),), (Pick(1, 7, 0.9),)
        for drafts, position in (
            ((second, other), (0, 8)),
            ((other, second), (1, 7)),
            ((other, (Pick(0, 7, 1.0),)), (0, 7)),
        ):
            named = {block.reveal(draft): Draft(number, draft) for number, draft in enumerate(drafts, 1)}
            choose = accept_within_margin(Canvas(block), TopConfidence(1), named, 0.5)
            first = choose(prediction, block)[0]
            assert (first.position, first.token) == position


class EvenTokens:
    """A grammar of even tokens, after which nothing is forced."""

    def mask(self, tokens: tuple[int, ...]) -> None:
        raise NotImplementedError

    def forced(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return ()

    def allowed(self, tokens: tuple[int, ...], following: tuple[int, ...]) -> int:
        return next((count for count, token in enumerate(following) if token % 2), len(following))

    def complete(self, tokens: tuple[int, ...]) -> bool:
        return True

    def advance(self, tokens: tuple[int, ...]) -> None:
        raise NotImplementedError


def test_a_near_draft_that_the_grammar_refuses_is_not_accepted() -> None:
    block = masked_block(2)
    prediction = prediction_of((near_pick(4, 0.5, 6, 0.45, 0), near_pick(8, 0.5, 9, 0.45, 1)))
    for drafted, tokens in (((6, 8), (6, 8)), ((6, 9), (4,)), ((6,), (6,)), ((4, 9), (4,))):
        step = tuple(Pick(position, token, 0.9) for position, token in enumerate(drafted))
        canvas = Canvas(block, grammar=BlockGrammar(EvenTokens(), 0))
        choose = accept_within_margin(canvas, ONE, {block.reveal(step): Draft(1, step)}, 0.5)
        assert tuple(pick.token for pick in choose(prediction, block)) == tokens


def test_with_a_grammar_a_step_begins_at_the_leftmost_position() -> None:
    block, step = masked_block(2), (Pick(1, 8, 0.9),)
    prediction = prediction_of((near_pick(4, 0.5, 6, 0.45, 0), near_pick(8, 0.5, 9, 0.45, 1)))
    choose = accept_within_margin(
        Canvas(block, grammar=BlockGrammar(EvenTokens(), 0)), ONE, {block.reveal(step): Draft(1, step)}, 0.5
    )
    first = choose(prediction, block)[0]
    assert (first.position, first.token) == (0, 4)


# --- whole blocks ----------------------------------------------------------------------------------


def test_an_accepted_draft_is_counted_and_its_state_is_read_in_the_same_forward() -> None:
    truth = fixed({position: (10 + position, 0.6, 0.0, 20 + position, 0.55) for position in range(4)})
    drafts = fixed({position: (20 + position, 0.9) for position in range(4)})
    strict, lax = (
        run(masked_block(4), Speculative(2, verify="sequential", margin=margin), truth, drafts)
        for margin in (None, 0.9)
    )
    assert strict.tokens == (10, 11, 12, 13)
    assert lax.tokens == (10, 21, 22, 13)
    assert [step.accepted for step in lax.canvas.steps] == [0, 2]
    assert len(lax.evaluations) < len(strict.evaluations)
    assert lax.canvas.steps[1].revealed[0].confidence == pytest.approx(0.55)


def test_only_verifications_with_drafts_ask_for_second_tokens() -> None:
    truth = fixed({position: (10 + position, 0.6, 0.0, 20 + position, 0.55) for position in range(4)})
    lax = run(masked_block(4), Speculative(2, margin=0.9), truth, truth)
    assert [query.top_logprobs for query in lax.evaluations] == [0, 2]
    assert all(len(query.states) > 1 for query in lax.evaluations if query.top_logprobs)
    strict = run(masked_block(4), Speculative(2), truth, truth)
    assert not any(query.top_logprobs for query in strict.evaluations)


@settings(max_examples=150)
@given(
    blocks(), SEEDS, SEEDS, st.integers(0, 6), st.integers(1, 8), st.sampled_from(["static", "sequential"]),
    st.booleans(),
)  # fmt: skip
def test_one_token_at_a_time_the_strictest_margin_is_lossless_for_any_model(
    block: Block, seed: int, other: int, steps: int, drafts: int, verify: str, tree: bool
) -> None:
    truth = random_oracle(seed)
    drafter = mostly(truth, random_oracle(other), seed)
    mode = Speculative(steps if tree else steps + 1, drafts if tree else None, verify=verify)
    strict = run(block, mode, truth, drafter)
    strictest = run(block, replace(mode, margin=1.0), truth, drafter)
    assert picks_of(strictest) == picks_of(strict)
    assert [query.states for query in strictest.evaluations] == [query.states for query in strict.evaluations]


def picks_of(done: object) -> list[tuple[int, int, float]]:
    return [(pick.position, pick.token, pick.confidence) for pick in picks(done)]  # type: ignore[arg-type]


@settings(max_examples=150)
@given(
    blocks(), SEEDS, SEEDS, st.integers(0, 6), st.integers(1, 8), PLAIN, st.floats(0.01, 1), st.booleans()
)  # fmt: skip
def test_with_any_margin_only_the_two_likeliest_tokens_of_the_backbone_are_revealed(
    block: Block, seed: int, other: int, steps: int, drafts: int, plain: RuleMode, margin: float, tree: bool
) -> None:
    truth = random_oracle(seed)
    drafter = mostly(truth, random_oracle(other), seed)
    mode = Speculative(steps if tree else steps + 1, drafts if tree else None, verify=plain.name, margin=margin)
    done = run(block, replace(mode, **asdict(plain)), truth, drafter)
    assert M not in done.tokens
    assert len(done.evaluations) <= len(block.masked)
    for query, step in zip(done.evaluations, done.canvas.steps, strict=True):
        read = [truth(state) for state in query.states]
        for position, token in [(pick.position, pick.token) for pick in step.revealed]:
            masked = [
                row[position] for row, state in zip(read, query.states, strict=True) if state.tokens[position] == M
            ]
            assert any(token == row[0] or (token == row[3] and row[4] / row[1] > margin - 1e-9) for row in masked)


def test_with_a_budget_of_the_engine_the_margin_holds_too() -> None:
    truth = fixed({position: (10 + position, 0.6, 0.0, 20 + position, 0.55) for position in range(4)})
    drafts = fixed({position: (20 + position, 0.9) for position in range(4)})
    lax = run(
        masked_block(4), Speculative("auto", verify="sequential", margin=0.9), truth, drafts, DraftBudget(0, 4, 1)
    )
    assert 21 in lax.tokens
    none = run(masked_block(4), Speculative("auto", verify="sequential", margin=0.9), truth, drafts)
    assert none.tokens == (10, 11, 12, 13)


# --- the knob --------------------------------------------------------------------------------------


def test_with_a_margin_drafts_decide() -> None:
    assert Speculative(margin=1.0).drafts_decide
    assert not any(mode.drafts_decide for mode in (Speculative(), Speculative(2, verify="sequential"), Static()))
    assert only_drafts(Speculative(margin=0.5))
    assert leaves_drafts_open(Speculative(margin=0.5))
    assert Speculative(margin=0.5).plain == Static()
