"""Tokens that are copied from the text before a block."""

import pytest

from service.decode.block import MASKED, Block, Pick
from service.decode.canvas import DraftBudget
from service.decode.modes import Sequential, Speculative, Static
from service.decode.prompt_lookup import PromptLookup
from tests.decode.oracle import fixed, masked_block, run
from tests.predictions import prediction_of

M = MASKED
BLOCK = masked_block(4)
#: the tokens 1 to 8 twice; behind the second 1, 2 stands the block
TEXT = (1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2)


def copied(text: tuple[int, ...], block: Block, count: int = 12) -> dict[int, int] | None:
    prediction = PromptLookup(text).prediction(block, count)
    return None if prediction is None else dict(zip(prediction.positions, prediction.tokens, strict=True))


def test_the_tokens_after_the_same_last_ones_are_copied() -> None:
    assert copied(TEXT, BLOCK) == {0: 3, 1: 4, 2: 5, 3: 6}
    assert copied(TEXT[:-2], Block((1, 2, M, M))) == {2: 3, 3: 4}
    assert copied(TEXT, BLOCK, count=2) == {0: 3, 1: 4}


def test_nothing_is_copied_where_the_last_tokens_are_new_or_few() -> None:
    assert copied((1, 2, 3, 4, 9, 2), BLOCK) is None
    assert copied((), BLOCK) is None
    assert copied((1,), Block((1, M))) is None


def test_a_place_must_agree_with_all_tokens_of_the_block() -> None:
    assert copied(TEXT, Block((M, M, 5, M))) == {0: 3, 1: 4, 3: 6}
    assert copied(TEXT, Block((M, M, 6, M))) is None
    assert copied((1, 2, 3, 4, 5, 1, 2, 8, 8, 6, 1, 2), Block((M, M, 5, M))) == {0: 3, 1: 4, 3: 1}


def test_the_place_with_the_longest_agreement_is_copied_the_latest_of_equal_ones() -> None:
    assert copied((7, 1, 2, 3, 3, 8, 1, 2, 4, 4, 7, 1, 2), masked_block(2)) == {0: 3, 1: 3}
    assert copied((7, 1, 2, 3, 3, 7, 1, 2, 4, 4, 7, 1, 2), masked_block(2)) == {0: 4, 1: 4}


def test_a_text_that_repeats_itself_is_continued() -> None:
    assert copied((5, 6, 5, 6), masked_block(5)) == {0: 5, 1: 6, 2: 5, 3: 6, 4: 5}
    assert copied((8, 8, 8), masked_block(3)) == {0: 8, 1: 8, 2: 8}


def test_a_match_within_the_bytes_of_two_tokens_is_none() -> None:
    assert copied((1 << 8, 2 << 8, 7, 1, 2), masked_block(1)) is None


def test_later_copied_tokens_are_less_sure() -> None:
    prediction = PromptLookup(TEXT).prediction(BLOCK, 12)
    assert prediction is not None
    first = prediction.confidences[0]
    assert list(prediction.confidences) == pytest.approx([first, first**2, first**3, first**4])


def test_a_request_learns_how_often_copied_tokens_are_right() -> None:
    right, wrong = PromptLookup(TEXT), PromptLookup(TEXT)
    for new in range(10, 30):
        for lookup, token in ((right, 3), (wrong, new)):
            assert lookup.prediction(masked_block(9), 12) is not None
            lookup.append((token, 4, 5, 6, 7, 8, 9, 1, 2))
    sure = [lookup.prediction(masked_block(9), 12) for lookup in (right, wrong)]
    assert sure[0] is not None
    assert sure[0].confidences[0] > 0.9
    assert sure[1] is not None
    assert sure[1].confidences[0] < 0.2


def test_states_that_were_not_passed_teach_nothing() -> None:
    lookup = PromptLookup(TEXT)
    before = lookup.prediction(BLOCK, 1)
    lookup.prediction(Block((3, 9, M, M)), 1)
    lookup.merged(prediction_of((Pick(3, 9, 0.5),)), Block((9, 9, 9, M)), 1)
    lookup.append((3, 4, 5, 6))
    assert before is not None
    assert len(lookup._counts) == 8
    assert sum(count for count, _ in lookup._counts) == 8 * 4 + 1


class TestMerged:
    def test_a_copied_token_replaces_a_less_likely_one_and_makes_an_equal_one_surer(self) -> None:
        picks = Pick(0, 9, 0.01), Pick(1, 4, 0.5), Pick(2, 9, 0.99), Pick(3, 9, 0.01)
        merged = PromptLookup(TEXT).merged(prediction_of(picks), BLOCK, 3)
        assert list(merged.tokens) == [3, 4, 9, 9]
        assert merged.confidences[0] > 0.1
        assert 0.5 < merged.confidences[1] < 1
        assert list(merged.confidences[2:]) == [0.99, 0.01]

    def test_without_a_place_the_prediction_stays(self) -> None:
        prediction = prediction_of((Pick(0, 9, 0.1),))
        assert PromptLookup((1, 2)).merged(prediction, BLOCK, 4) is prediction


#: the backbone's tokens are those of the text, and it begins at the left
REPEATS = fixed({0: (3, 0.9), 1: (4, 0.8), 2: (5, 0.7), 3: (6, 0.6)})


@pytest.mark.parametrize("verified", [Static(), Sequential()])
def test_a_repeated_block_takes_one_forward(verified: Static | Sequential) -> None:
    mode = Speculative(0, max_drafts=4, verify=verified.name, prompt_lookup_num_tokens=4)
    done = run(BLOCK, mode, REPEATS, text=TEXT)
    assert done.tokens == run(BLOCK, verified, REPEATS).tokens == (3, 4, 5, 6)
    assert len(done.evaluations) == 1
    assert len(run(BLOCK, mode, REPEATS, text=(1, 2)).evaluations) > 1


def test_the_engines_budget_says_whether_the_first_forward_has_copied_drafts() -> None:
    free = DraftBudget(0.0, 4)
    for budget, forwards in ((free._replace(copied=4), 1), (free, 2)):
        assert len(run(BLOCK, Speculative(), REPEATS, budget=budget, text=TEXT).evaluations) == forwards
    done = run(BLOCK, Speculative(prompt_lookup_num_tokens=0), REPEATS, budget=free._replace(copied=4), text=TEXT)
    assert len(done.evaluations) == 2
