"""Rules by entropy and from left to right, against readings made by hand. All rules, against what the device gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.decode.block import Pick
from service.decode.canvas import Canvas
from service.decode.mode import Pace
from service.decode.modes import Static
from service.decode.policy import Decoding, Evaluate, Prediction
from service.decode.rules import LEFT, DevicePicks, JointlyAbove, LeftToRight, LowestEntropy, Rule, TopConfidence
from tests.predictions import prediction_of
from tests.rules import BOUNDS, EXAMPLES, THRESHOLDS, FirstHalf, Halving, device_rules, picks_by, served_rules

#: position -> (token, confidence, entropy); the surest by confidence is not the one of lowest entropy
SCRIPT = {0: (10, 0.5, 0.7), 1: (11, 0.9, 0.2), 2: (12, 0.95, 0.3), 3: (13, 0.6, 0.1)}


def prediction(entropies: dict[int, float]) -> Prediction:
    picks = tuple(Pick(position, position, 0.5) for position in sorted(entropies))
    return prediction_of(picks, entropies=[entropies[position] for position in sorted(entropies)])


def positions(picks: tuple[Pick, ...]) -> list[int]:
    return [pick.position for pick in picks]


class TestLowestEntropy:
    @pytest.mark.parametrize(
        ("bound", "wanted"),
        [
            (0.0, [3]),
            (0.0999, [3]),
            (0.1, [3, 1]),  # .1 + .2 less .2
            (0.29, [3, 1]),
            (0.3001, [3, 1, 2]),  # .1 + .2 + .3 less .3
            (0.5999, [3, 1, 2]),
            (0.6001, [3, 1, 2, 0]),
            (9.0, [3, 1, 2, 0]),
        ],
    )
    def test_as_many_as_the_sum_less_the_largest_allows(self, bound: float, wanted: list[int]) -> None:
        entropies = {position: entropy for position, (_, _, entropy) in SCRIPT.items()}
        assert positions(LowestEntropy(bound)(prediction(entropies))) == wanted

    def test_ties_go_to_the_lowest_position(self) -> None:
        assert positions(LowestEntropy(0.25)(prediction({1: 0.2, 4: 0.2, 6: 0.2, 7: 0.2}))) == [1, 4]

    def test_certain_positions_cost_nothing(self) -> None:
        assert positions(LowestEntropy(0.0)(prediction({0: 0.0, 1: 2.0, 2: 0.0, 3: 3.0}))) == [0, 2, 1]


class TestJointlyAbove:
    @pytest.mark.parametrize(
        ("threshold", "wanted", "in_order"),
        [
            (0.95, [], []),  # equal to the threshold is not above
            (0.9, [2], []),
            (0.6, [2, 1], []),  # .95 * .9, then * .6
            (0.5, [2, 1, 3], []),
            (0.46, [2, 1, 3], [0]),  # from the left .5, then * .9
            (0.44, [2, 1, 3], [0, 1]),
            (0.42, [2, 1, 3], [0, 1, 2]),
            (0.25, [2, 1, 3, 0], [0, 1, 2, 3]),
        ],
    )
    def test_picks_as_long_as_the_product_of_their_confidences_is_above(
        self, threshold: float, wanted: list[int], in_order: list[int]
    ) -> None:
        read = prediction_of(tuple(Pick(position, *SCRIPT[position][:2]) for position in SCRIPT))
        assert positions(JointlyAbove(threshold)(read)) == wanted
        assert positions(JointlyAbove(threshold).in_order(read)) == in_order


class TestLeftmost:
    @pytest.mark.parametrize(("count", "wanted"), [(1, [2]), (2, [2, 3]), (3, [2, 3, 7]), (9, [2, 3, 7])])
    def test_a_number_of_positions_from_the_left(self, count: int, wanted: list[int]) -> None:
        picks = tuple(Pick(position, 0, confidence) for position, confidence in ((2, 0.1), (3, 0.9), (7, 0.8)))
        assert positions(LeftToRight(count)(prediction_of(picks))) == wanted

    @pytest.mark.parametrize(
        ("count", "bound", "wanted"),
        [
            (1, 0.01, [0]),
            (1, 0.2, [0, 1]),  # .7 + .2 less .7
            (1, 0.5, [0, 1, 2]),
            (1, 0.6, [0, 1, 2, 3]),
            (3, 0.01, [0, 1, 2]),
            (2, 0.6, [0, 1, 2, 3]),
        ],
    )
    def test_the_run_goes_on_as_long_as_the_bound_allows(self, count: int, bound: float, wanted: list[int]) -> None:
        entropies = {position: entropy for position, (_, _, entropy) in SCRIPT.items()}
        assert positions(LeftToRight(count, bound + 1e-9)(prediction(entropies))) == wanted

    def test_one_doubtful_position_ends_no_run_of_sure_ones_two_do(self) -> None:
        entropies = {0: 0.0, 1: 0.0, 2: 2.0, 3: 0.0, 4: 1.5, 5: 0.0}
        assert positions(LeftToRight(1, 0.1)(prediction(entropies))) == [0, 1, 2, 3]


class Renamed(FirstHalf):
    """Overrides nothing."""

    __slots__ = ()


class Known(FirstHalf):
    """Says itself what the device gets."""

    __slots__ = ()

    @property
    def device_picks(self) -> DevicePicks:
        return DevicePicks(LEFT, 2)

    def __call__(self, prediction: Prediction) -> tuple[Pick, ...]:
        return prediction.picks[:2]


class Repeating(Static, frozen=True):
    """Another policy than the mode from which it inherits."""

    def decode(self, canvas: Canvas) -> Decoding:
        yield Evaluate((canvas.block,))
        yield from super().decode(canvas)


def test_all_rules_have_examples() -> None:
    assert set(served_rules()) == EXAMPLES.keys()


@given(
    device_rules(),
    st.lists(st.tuples(st.floats(0.0, 1.0) | THRESHOLDS, st.floats(0.0, 6.0) | BOUNDS), min_size=1, max_size=12),
)
def test_a_rule_and_what_the_device_gets_of_it_are_the_same_picks(rule: Rule, read: list[tuple[float, float]]) -> None:
    """Whoever changes a rule changes both, or deletes `device_picks`: on CUDA the device picks by these alone."""
    picks = (Pick(2 * index, index, confidence) for index, (confidence, _) in enumerate(read))
    wanted = prediction_of(picks, entropies=[entropy for _, entropy in read])
    assert rule.device_picks is not None
    assert sorted(positions(rule(wanted))) == sorted(positions(picks_by(rule.device_picks, wanted)))


@given(
    st.one_of(EXAMPLES.values()) | st.builds(Rule),
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 6.0)), min_size=1, max_size=12),
)
def test_in_order_a_rule_picks_the_leftmost_positions(rule: Rule, read: list[tuple[float, float]]) -> None:
    """A rule that says nothing of it reveals one token."""
    picks = tuple(Pick(2 * index, index, confidence) for index, (confidence, _) in enumerate(read))
    wanted = rule.in_order(prediction_of(picks, entropies=[entropy for _, entropy in read]))
    assert wanted == picks[: len(wanted)]
    assert type(rule) is not Rule or len(wanted) == 1


def test_the_device_gets_no_picks_of_a_class_that_overrides_them_alone() -> None:
    assert FirstHalf().device_picks is Renamed().device_picks is Rule().device_picks is None
    assert FirstHalf().num_picks is None
    assert (TopConfidence(2).device_picks, Known().device_picks) == (DevicePicks(min_count=2), DevicePicks(LEFT, 2))


def test_a_mode_that_overrides_the_policy_alone_has_no_pace() -> None:
    assert Repeating().pace is None
    assert (Static().pace, Halving().pace) == (Pace(1), Pace(None))
