"""Each mode's rule, step by step, against a scripted oracle."""

import pytest

from service.decode.block import MASKED, Block, Pick
from service.decode.canvas import Canvas, DraftBudget
from service.decode.modes import Direct, Dynamic, Remask, Speculative, Static
from service.decode.rules import JointlyAbove
from tests.decode.oracle import fixed, masked_block, random_oracle, run
from tests.predictions import prediction_of

M = MASKED
FOUR = {0: (10, 0.5), 1: (11, 0.9), 2: (12, 0.7), 3: (13, 0.6)}


def test_most_confident_takes_the_lowest_position_of_a_tie() -> None:
    prediction = prediction_of((Pick(0, 1, 0.4), Pick(2, 1, 0.8), Pick(3, 1, 0.8), Pick(5, 1, 0.8)))
    assert [pick.position for pick in prediction.most_confident()] == [2]
    assert [pick.position for pick in prediction.most_confident(2)] == [2, 3]
    assert [pick.position for pick in prediction.most_confident(4)] == [2, 3, 5, 0]
    assert len(prediction.most_confident(9)) == 4


class TestStatic:
    def test_one_position_a_forward_in_order_of_confidence(self) -> None:
        done = run(masked_block(4), Static(), fixed(FOUR))
        assert done.revealed == [[(1, 11)], [(2, 12)], [(3, 13)], [(0, 10)]]
        assert len(done.evaluations) == 4
        assert {step.kind for step in done.canvas.steps} == {"denoise"}

    def test_each_forward_sees_what_was_revealed_before(self) -> None:
        done = run(masked_block(4), Static(2), fixed(FOUR))
        assert [query.states for query in done.evaluations] == [(masked_block(4),), (Block((M, 11, 12, M)),)]

    def test_a_complete_block_takes_no_forward(self) -> None:
        assert run(Block((1, 2)), Static(), fixed({})).queries == []


class TestDynamic:
    @pytest.mark.parametrize(
        ("threshold", "revealed"),
        [
            (0.55, [[(1, 11), (2, 12), (3, 13)], [(0, 10)]]),
            (0.7, [[(1, 11)], [(2, 12)], [(3, 13)], [(0, 10)]]),  # equal to the threshold is not above
            (0.95, [[(1, 11)], [(2, 12)], [(3, 13)], [(0, 10)]]),  # none is above: the most confident
        ],
    )
    def test_every_position_above_the_threshold_or_the_most_confident(
        self, threshold: float, revealed: list[list[tuple[int, int]]]
    ) -> None:
        assert run(masked_block(4), Dynamic(threshold), fixed(FOUR)).revealed == revealed


class TestDirect:
    @pytest.mark.parametrize(("steps", "forwards"), [(1, 4), (2, 3), (3, 2), (8, 1)])
    def test_k_picks_of_mrp_follow_each_of_the_backbone(self, steps: int, forwards: int) -> None:
        done = run(masked_block(8), Direct(steps), random_oracle(1), random_oracle(2))
        assert len(done.evaluations) == forwards
        assert len(done.refinements) == 8 - forwards
        kinds = [step.kind for step in done.canvas.steps]
        assert kinds == [("denoise", *("mrp",) * steps)[i % (steps + 1)] for i in range(8)]

    def test_mrp_is_asked_about_the_block_as_it_stands_and_its_pick_is_taken(self) -> None:
        scripted = {0: (20, 0.8), 2: (22, 0.3), 3: (23, 0.8)}
        done = run(masked_block(4), Direct(2), fixed(FOUR), fixed(scripted))
        assert done.revealed == [[(1, 11)], [(0, 20)], [(3, 23)], [(2, 12)]]
        assert [query.state for query in done.refinements] == [Block((M, 11, M, M)), Block((20, 11, M, M))]

    def test_the_anchor_accumulates(self) -> None:
        done = run(masked_block(8), Direct(3), random_oracle(3), random_oracle(4))
        first, second, third = done.refinements[:3]
        assert len({id(query.after) for query in (first, second, third)}) == 3
        assert second.after.picks == tuple(
            Pick(p, *random_oracle(4)(first.state)[p][:2]) for p in first.state.masked
        ), "the second refinement stands on the first one's reading"


class TestDirectWithAThreshold:
    @pytest.mark.parametrize(
        ("steps", "threshold", "revealed", "forwards"),
        [
            (1, 0.7, [[(1, 11)], [(0, 20)], [(2, 12)], [(3, 23)]], (2, 2)),  # .8 * .8 is not above .7
            (1, 0.6, [[(1, 11)], [(0, 20), (3, 23)], [(2, 12)]], (2, 1)),
            (2, 0.6, [[(1, 11)], [(0, 20), (3, 23)], [(2, 12)]], (2, 2)),  # then * .7 is not above
            (2, 0.4, [[(1, 11)], [(0, 20), (3, 23), (2, 22)]], (1, 1)),
            (3, 0.8, [[(1, 11)], [(2, 12)], [(3, 13)], [(0, 10)]], (4, 3)),  # equal to the threshold is not above
        ],
    )
    def test_picks_of_mrp_follow_while_their_product_is_above_it(
        self, steps: int, threshold: float, revealed: list[list[tuple[int, int]]], forwards: tuple[int, int]
    ) -> None:
        scripted = {0: (20, 0.8), 1: (21, 0.1), 2: (22, 0.7), 3: (23, 0.8)}
        done = run(masked_block(4), Direct(steps, threshold), fixed(FOUR), fixed(scripted))
        assert done.revealed == revealed
        assert (len(done.evaluations), len(done.refinements)) == forwards

    def test_the_product_goes_on_over_forwards_of_mrp_and_begins_anew_with_the_backbones(self) -> None:
        def mrp(state: Block) -> dict[int, tuple[int, float]]:
            """The next masked position has .8, others .1."""
            return {position: (20, 0.8 if position == state.masked[0] else 0.1) for position in range(8)}

        done = run(masked_block(8), Direct(4, 0.6), fixed({p: (10, p / 10) for p in range(8)}), mrp)
        kinds = [step.kind for step in done.canvas.steps]
        assert kinds == ["denoise", "mrp", "mrp", "denoise", "mrp", "mrp", "denoise", "mrp"]
        assert len(done.refinements) == 3 + 3 + 1

    def test_its_pace_has_a_gate(self) -> None:
        assert Direct(2).pace == (1, 2, None)
        assert Direct(2, 0.6).pace == (1, 2, JointlyAbove(0.6))
        assert [Direct(2, threshold).pace.is_fixed for threshold in (None, 0.6)] == [True, False]


class TestSpeculative:
    def test_states_are_the_block_with_one_draft_more_each(self) -> None:
        done = run(masked_block(5), Speculative(2), fixed({**FOUR, 4: (14, 0.1)}), fixed({**FOUR, 4: (14, 0.1)}))
        block = Block((M, 11, M, M, M))
        first, second = block.reveal([Pick(2, 12, 0)]), block.reveal([Pick(2, 12, 0), Pick(3, 13, 0)])
        assert done.evaluations[1].states == (block, first, second)

    def test_the_confidence_on_record_is_the_backbones(self) -> None:
        scripted = {p: (token, 0.01 + confidence / 2) for p, (token, confidence) in FOUR.items()}
        done = run(masked_block(4), Speculative(3), fixed(FOUR), fixed(scripted))
        recorded = {pick.position: pick.confidence for step in done.canvas.steps for pick in step.revealed}
        assert recorded == {p: confidence for p, (_, confidence) in FOUR.items()}


class TestTree:
    def test_without_mrp_the_last_reading_drafts(self) -> None:
        done = run(masked_block(4), Speculative(0, max_drafts=2), fixed(FOUR))
        block = Block((M, 11, M, M))
        first, second = block.reveal([Pick(2, 12, 0)]), block.reveal([Pick(2, 12, 0), Pick(3, 13, 0)])
        assert done.evaluations[1].states == (block, first, second)
        assert len(done.evaluations) == 2
        assert done.refinements == []

    def test_no_state_is_drafted_beyond_the_end_that_the_engine_knows(self) -> None:
        """If the answer ends after two tokens, a state with both tokens needs no verification."""
        canvas = Canvas(masked_block(4), budget=lambda: DraftBudget(0.0, 9), ends=lambda block: block.num_leading >= 2)
        policy = Speculative("auto").decode(canvas)
        next(policy)
        scripted = {0: (10, 0.9), 1: (11, 0.8), 2: (12, 0.7), 3: (13, 0.6)}
        query = policy.send((prediction_of(tuple(Pick(p, *scripted[p]) for p in range(4))),))
        assert len(query.states) > 1
        assert not any(canvas.ends(state) for state in query.states)


class TestRemask:
    def test_a_doubtful_fresh_reveal_is_masked_again(self) -> None:
        doubts = {**FOUR, 2: (0, 0.2)}
        done = run(masked_block(4), Remask(0.55), fixed(FOUR), fixed(doubts))
        assert [(pick.position, pick.token) for pick in done.canvas.steps[0].revealed] == [(1, 11), (2, 12), (3, 13)]
        assert done.canvas.steps[1].remasked == (2,)
        assert done.refinements[0].rescore == (1, 2, 3)
        assert done.refinements[0].state == Block((M, 11, 12, 13))

    @pytest.mark.parametrize(
        ("confidences", "remasked"),
        [
            ((0.55, 0.55, 0.55), ()),  # equal to the threshold is not doubtful
            ((0.1, 0.3, 0.2), (1, 3)),  # the best of doubtful ones stays
            ((0.3, 0.3, 0.3), (2, 3)),  # of equal ones the lowest position
        ],
    )
    def test_of_doubtful_reveals_the_best_stays(
        self, confidences: tuple[float, ...], remasked: tuple[int, ...]
    ) -> None:
        doubts = {0: (0, 0.0), **{position: (0, sure) for position, sure in enumerate(confidences, 1)}}
        done = run(masked_block(4), Remask(0.55), fixed(FOUR), fixed(doubts))
        assert tuple(position for step in done.canvas.steps[:2] for position in step.remasked) == remasked
