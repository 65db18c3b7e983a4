"""The intervals, against values known from elsewhere and by simulation."""

import random

import pytest

from service.quality.calibration.records import paired_difference, proportion


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [  # Newcombe (1998), "Two-sided confidence intervals for the single proportion", method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_a_share_has_wilsons_interval(count: int, of: int, low: float, high: float) -> None:
    estimate = proportion(count, of)
    assert estimate.value == count / of
    assert (round(estimate.low, 4), round(estimate.high, 4)) == (low, high)


def test_the_difference_of_pairs_hangs_on_those_that_differ() -> None:
    few, many = paired_difference(1, 2, 1000), paired_difference(51, 52, 1000)
    assert few.value == many.value == -0.001
    assert few.low < few.value < few.high
    assert many.high - many.low > 4 * (few.high - few.low)
    assert paired_difference(0, 0, 100).low < 0 < paired_difference(0, 0, 100).high


def test_the_paired_interval_holds_what_it_says() -> None:
    """Of 1,000 experiments about 95 % have the true difference in their interval."""
    draw = random.Random(3)
    covered = 0
    for _ in range(1000):
        kinds = draw.choices(("gained", "lost", "same"), (0.03, 0.05, 0.92), k=300)
        estimate = paired_difference(kinds.count("gained"), kinds.count("lost"), 300)
        covered += estimate.low <= -0.02 <= estimate.high
    assert 925 <= covered <= 985
