"""The least promise that is worth a price."""

from __future__ import annotations

import pytest

from service.engine.drafting.reliability import Reliability


@pytest.mark.parametrize("price", [0.0, 0.02, 0.3, 0.77, 0.99])
def test_promises_are_believed_at_first(price: float) -> None:
    assert Reliability().least(price) == pytest.approx(price)


def test_promises_that_are_not_kept_have_to_be_higher() -> None:
    reliability = Reliability()
    for promised in (0.15, 0.35, 0.55, 0.75, 0.93):
        reliability.learn([(promised, 0)] * 600 + [(promised, 1)] * int(200 * promised))
    assert reliability.least(0.1) > 0.15
    assert reliability.least(0.1) < reliability.least(0.15) < reliability.least(0.9)
    sure = [(0.995, 1)] * 50
    before = reliability.least(0.9)
    reliability.learn(sure)
    assert 0.9 < reliability.least(0.9) <= before


def test_promises_that_are_more_than_kept_may_be_lower() -> None:
    reliability = Reliability()
    reliability.learn([(0.35, 1)] * 200 + [(0.45, 1)] * 200)
    assert reliability.least(0.5) < 0.36


def test_what_was_learned_is_forgotten_in_time() -> None:
    reliability = Reliability()
    reliability.learn([(0.55, 0)] * 6000)
    assert reliability.least(0.5) > 0.6
    reliability.learn([(0.55, 1)] * 6000)
    assert reliability.least(0.5) < 0.56


def test_when_nothing_keeps_a_price_nothing_is_worth_it() -> None:
    reliability = Reliability()
    for promised in (0.15, 0.45, 0.85, 0.93, 0.97, 0.99, 1.5, 3.0):
        reliability.learn([(promised, 0)] * 3000)
    assert reliability.least(0.5) >= 1
