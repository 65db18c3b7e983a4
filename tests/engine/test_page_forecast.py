"""The pages that requests are expected to hold, and who loses its pages where they are not enough."""

import random
from collections.abc import Sequence
from typing import NamedTuple, cast

import pytest

from service.engine.page_forecast import PageForecast
from service.engine.request import GenerationRequest, SamplingParams
from service.engine.running_request import RunningRequest
from tests.engine.helpers import request_of

STOPS = frozenset([7])


def forecast(lengths: Sequence[int], block_size: int = 4) -> PageForecast:
    made = PageForecast(block_size)
    for length in lengths:
        made.add(request_of("x", [1], stop_token_ids=STOPS), length)
    return made


class Answer(NamedTuple):
    """An answer that has not ended."""

    num_blocks: int
    request: GenerationRequest = request_of("x", [1], stop_token_ids=STOPS)


def pages(
    made: PageForecast,
    num_blocks: int,
    limit: int = 100,
    stops: frozenset[int] = STOPS,
    least: int = 0,
    running: Sequence[int] = (),
) -> int:
    made.observe([cast(RunningRequest, Answer(blocks)) for blocks in running])
    sampling = SamplingParams(min_tokens=least)
    return made.pages(request_of("x", [1], stop_token_ids=stops, sampling=sampling), 3, num_blocks, limit)


def test_until_some_answers_have_ended_a_request_is_expected_to_reach_its_limit() -> None:
    assert pages(forecast([5] * 15), 0) == 100
    assert pages(forecast([5] * 16), 0) == 3 + 5


def test_it_is_the_median_of_the_longer_answers() -> None:
    made = forecast([*range(1, 20), 50])
    assert [pages(made, blocks) for blocks in (0, 1, 10, 18, 19, 49)] == [3 + n for n in (10, 11, 15, 19, 50, 50)]


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


def test_answers_that_run_on_are_longer_than_those_that_have_ended() -> None:
    """The first ends of many answers that began together are those of the shortest ones."""
    made = forecast([5] * 20)
    assert pages(made, 0, running=[1] * 100) == 3 + 5
    assert pages(made, 0, running=[5] * 19) == 3 + 5
    assert pages(made, 0, running=[5] * 60) == 3 + 12  # a quarter ends every 5 blocks
    assert pages(made, 5, running=[5] * 60) == 3 + 17
    assert pages(made, 40, running=[5] * 60) == 3 + 80


@pytest.mark.parametrize("seed", range(5))
def test_it_knows_the_median_when_a_third_has_ended(seed: int) -> None:
    rng = random.Random(seed)
    lengths = sorted(rng.randint(1, 99) for _ in range(300))
    made = forecast(lengths[:100])
    assert abs(pages(made, 0, 1000, running=[lengths[100]] * 200) - 3 - lengths[150]) < 16


def test_it_has_its_min_tokens() -> None:
    assert pages(forecast([5] * 20), 0, least=41) == 3 + 11


def test_only_the_last_answers_count() -> None:
    made = forecast([*[50] * 600, *[5] * 400])
    assert pages(made, 0) == 3 + 5
    assert len(made._ended) == len(made._sorted) == 512


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_that_of_requests_that_grow_page_by_page(seed: int) -> None:
    rng = random.Random(seed)
    loads = [(rng.randint(0, 12), rng.randint(1, 9)) for _ in range(rng.randint(1, 8))]
    held = [
        sum(now + grown for left, now in loads if left >= grown) for grown in range(max(left for left, _ in loads) + 1)
    ]
    assert PageForecast(4).peak(loads) == max(held)


def test_nothing_has_no_peak() -> None:
    assert PageForecast(4).peak([]) == 0
