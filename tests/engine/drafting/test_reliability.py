"""The least promise that is worth a price."""

from __future__ import annotations

import pytest

from service.engine.drafting.reliability import Reliability


def learn(reliability: Reliability, promises: list[tuple[float, int]]) -> None:
    """Trees of one draft each."""
    for one in promises:
        reliability.learn([one])


@pytest.mark.parametrize("price", [0.0, 0.02, 0.3, 0.77, 0.99])
def test_promises_are_believed_at_first(price: float) -> None:
    assert Reliability().least(price) == pytest.approx(price)


def test_promises_that_are_not_kept_have_to_be_higher() -> None:
    reliability = Reliability()
    for promised in (0.15, 0.35, 0.55, 0.75, 0.93):
        learn(reliability, [(promised, 0)] * 600 + [(promised, 1)] * int(200 * promised))
    assert reliability.least(0.1) > 0.15
    assert reliability.least(0.1) < reliability.least(0.15) < reliability.least(0.9)
    sure = [(0.995, 1)] * 50
    before = reliability.least(0.9)
    learn(reliability, sure)
    assert 0.9 < reliability.least(0.9) <= before


def test_promises_that_are_more_than_kept_may_be_lower() -> None:
    reliability = Reliability()
    learn(reliability, [(0.35, 1)] * 200 + [(0.45, 1)] * 200)
    assert reliability.least(0.5) < 0.36


def test_what_was_learned_is_forgotten_in_time() -> None:
    reliability = Reliability()
    learn(reliability, [(0.55, 0)] * 6000)
    assert reliability.least(0.5) > 0.6
    learn(reliability, [(0.55, 1)] * 6000)
    assert reliability.least(0.5) < 0.56


def test_when_nothing_keeps_a_price_nothing_is_worth_it() -> None:
    reliability = Reliability()
    for promised in (0.15, 0.45, 0.85, 0.93, 0.97, 0.99, 1.5, 3.0):
        learn(reliability, [(promised, 0)] * 3000)
    assert reliability.least(0.5) >= 1


def test_what_drafts_bring_is_counted_by_their_place_in_the_tree() -> None:
    """Each draft's gain is that of drafts at similar places that promised as much."""
    reliability = Reliability()
    first, second, *_, last = reliability.gains([0.35] * 6)
    assert first == pytest.approx(0.35)
    assert first > second > last
    for _ in range(600):
        reliability.learn([(0.35, 0), (0.35, 1), (0.35, 1), (0.35, 1), (0.35, 0)])
    assert [round(gain) for gain in reliability.gains([0.35] * 8)] == [0, 1, 1, 1, 0, 0, 0, 0]
    assert reliability.gains([]) == []


def test_gains_lie_between_those_of_the_classes() -> None:
    reliability = Reliability()
    gains = [reliability.gains([promise / 100])[0] for promise in range(300)]
    assert gains == pytest.approx([promise / 100 for promise in range(300)])
    learn(reliability, [(0.35, 1)] * 600 + [(0.35, 0)] * 200)
    assert reliability.gains([0.25])[0] < reliability.gains([0.3])[0] < reliability.gains([0.35])[0]
