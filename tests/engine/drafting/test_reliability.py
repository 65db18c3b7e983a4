"""The least expected gain that is worth a price, and the actual gains behind expected ones."""

import pytest

from service.engine.drafting.reliability import Reliability


def count(reliability: Reliability, drafts: list[tuple[float, int]]) -> None:
    for draft in drafts:
        reliability.count([draft])


@pytest.mark.parametrize("price", [0.0, 0.02, 0.3, 0.77, 0.99])
def test_expected_gains_are_believed_at_first(price: float) -> None:
    assert Reliability().min_gain(price) == pytest.approx(price)


def test_old_counts_lose_their_weight() -> None:
    reliability = Reliability()
    count(reliability, [(0.55, 0)] * 6000)
    assert reliability.min_gain(0.5) > 0.6
    count(reliability, [(0.55, 1)] * 6000)
    assert reliability.min_gain(0.5) < 0.56


def test_gains_are_counted_by_the_position_in_the_tree() -> None:
    """Each draft's gain is that of drafts at similar places that expected as much."""
    reliability = Reliability()
    first, second, *_, last = reliability.actual_gains([0.35] * 6)
    assert first == pytest.approx(0.35)
    assert first > second > last
    for _ in range(600):
        reliability.count([(0.35, 0), (0.35, 1), (0.35, 1), (0.35, 1), (0.35, 0)])
    assert [round(gain) for gain in reliability.actual_gains([0.35] * 8)] == [0, 1, 1, 1, 0, 0, 0, 0]
    assert reliability.actual_gains([]) == []
