"""The drafts of all requests of a forward, weighed together: against trying all choices."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.drafting.planner import worth_reading

GAINS = st.floats(-0.2, 1.5)
STEPS = st.lists(st.floats(0, 1.2), min_size=9, max_size=9)


def prices_of(steps: list[float]) -> list[float]:
    """Of no row, one row, …: any that do not fall."""
    return [sum(steps[:rows]) for rows in range(len(steps) + 1)]


def surplus(offers: list[list[float]], prices: list[float], counts: tuple[int, ...]) -> float:
    return sum(sum(gains[:count]) for gains, count in zip(offers, counts, strict=True)) - prices[sum(counts)]


@settings(max_examples=300)
@given(st.lists(st.lists(GAINS, max_size=3).map(lambda gains: sorted(gains, reverse=True)), max_size=3), STEPS)
def test_no_choice_brings_more(offers: list[list[float]], steps: list[float]) -> None:
    prices = prices_of(steps)
    counts = worth_reading(offers, prices)
    choices = product(*(range(len(gains) + 1) for gains in offers))
    best = max(surplus(offers, prices, counts) for counts in choices)
    assert surplus(offers, prices, tuple(counts)) == pytest.approx(best, abs=1e-9)


@given(st.lists(st.lists(GAINS, max_size=3), max_size=3), STEPS)
def test_trees_whose_later_states_gain_more_are_cut_and_never_at_a_loss(
    offers: list[list[float]], steps: list[float]
) -> None:
    prices = prices_of(steps)
    counts = worth_reading(offers, prices)
    assert all(0 <= count <= len(gains) for gains, count in zip(offers, counts, strict=True))
    assert surplus(offers, prices, tuple(counts)) >= 0
