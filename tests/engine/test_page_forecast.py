"""The pages that requests are expected to hold, and who loses its pages where they are not enough."""

import random
from collections.abc import Sequence

import pytest

from service.engine.page_forecast import PageForecast, peak
from service.engine.request import SamplingParams
from tests.engine.helpers import request_of

STOPS = frozenset([7])


def forecast(lengths: Sequence[int], block_size: int = 4) -> PageForecast:
    made = PageForecast(block_size)
    for length in lengths:
        made.add(request_of("x", [1], stop_token_ids=STOPS), length)
    return made


def pages(made: PageForecast, num_blocks: int, limit: int = 100, stops: frozenset[int] = STOPS, least: int = 0) -> int:
    sampling = SamplingParams(min_tokens=least)
    return made.pages(request_of("x", [1], stop_token_ids=stops, sampling=sampling), 3, num_blocks, limit)


def test_until_some_answers_have_ended_a_request_is_expected_to_reach_its_limit() -> None:
    assert pages(forecast([5] * 15), 0) == 100
    assert pages(forecast([5] * 16), 0) == 3 + 5


def test_it_is_the_median_of_the_longer_answers() -> None:
    made = forecast([*range(1, 20), 50])
    assert [pages(made, blocks) for blocks in (0, 1, 10, 18, 19, 49)] == [3 + n for n in (11, 11, 16, 50, 50, 50)]


def test_longer_than_all_others_it_takes_as_much_again_at_most_its_limit() -> None:
    made = forecast([5] * 20)
    assert pages(made, 5) == 3 + 10
    assert pages(made, 60) == 100


def test_without_stop_tokens_an_answer_is_as_long_as_its_limit_and_says_nothing_about_others() -> None:
    made = forecast([5] * 20)
    assert pages(made, 0, stops=frozenset()) == 100
    for _ in range(100):
        made.add(request_of("x", [1]), 90)
    assert pages(made, 0) == 3 + 5


def test_it_has_its_min_tokens() -> None:
    assert pages(forecast([5] * 20), 0, least=41) == 3 + 11


def test_only_the_last_answers_count() -> None:
    made = forecast([*[50] * 600, *[5] * 400])
    assert pages(made, 0) == 3 + 5
    assert len(made._lengths) == len(made._sorted) == 512


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_that_of_requests_that_grow_page_by_page(seed: int) -> None:
    rng = random.Random(seed)
    loads = [(rng.randint(0, 12), rng.randint(1, 9)) for _ in range(rng.randint(1, 8))]
    held = [
        sum(own + grown for left, own in loads if left >= grown) for grown in range(max(left for left, _ in loads) + 1)
    ]
    assert peak(loads) == max(held)


def test_nothing_has_no_peak() -> None:
    assert peak([]) == 0
