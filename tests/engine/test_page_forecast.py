"""The pages that requests are expected to hold: at their ends, and together."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from service.engine.page_forecast import PageForecast
from service.engine.prefix_cache import Lease

#: the blocks of a prompt, and the limit of its request's pages
PROMPT, LIMIT = 3, 100


def lease(num_blocks: int = 0, *, least: int = PROMPT, limit: int = LIMIT, num_pages: int = 0) -> Lease:
    made = Lease([0] * num_pages, limit=limit, least=least, num_prompt=PROMPT)
    made.want(PROMPT + num_blocks)
    return made


def forecast(lengths: Sequence[int]) -> PageForecast:
    made = PageForecast()
    for length in lengths:
        made.add(lease(length - 1))
    return made


def ends(made: PageForecast, *leases: Lease) -> list[int]:
    fields = [(entry.num_prompt, entry.index - entry.num_prompt, entry.least, entry.limit) for entry in leases]
    return made.ends(*np.array(fields).T).tolist()


def lengths_of(made: PageForecast, *blocks: int, running: Sequence[int] = ()) -> list[int]:
    """The expected blocks of answers that have so many, beside `running` ones."""
    leases = [lease(count, limit=1000) for count in (*blocks, *running)]
    return [pages - PROMPT for pages in ends(made, *leases)][: len(blocks)]


def test_until_some_answers_have_ended_a_request_is_expected_to_reach_its_limit() -> None:
    assert ends(forecast([5] * 15), lease()) == [LIMIT]
    assert ends(forecast([5] * 16), lease()) == [PROMPT + 5]


def test_it_is_the_median_of_the_longer_answers() -> None:
    made = forecast([*range(1, 20), 50])
    assert [lengths_of(made, blocks) for blocks in (0, 2, 10, 18, 19)] == [[10], [11], [15], [19], [50]]


def test_longer_than_all_others_it_takes_as_much_again_at_most_its_limit() -> None:
    made = forecast([5] * 20)
    assert lengths_of(made, 5) == [10]
    assert ends(made, lease(60)) == [LIMIT]


def test_without_stop_tokens_an_answer_is_as_long_as_its_limit_and_says_nothing_about_others() -> None:
    made = forecast([5] * 20)
    assert ends(made, lease(least=LIMIT)) == [LIMIT]
    for _ in range(100):
        made.add(lease(90, least=LIMIT))
    assert lengths_of(made, 0) == [5]


def test_answers_that_run_on_are_longer_than_those_that_have_ended() -> None:
    """The first ends of many answers that began together are those of the shortest ones."""
    made = forecast([5] * 20)
    assert lengths_of(made, 0, running=[1] * 100) == [5]
    assert lengths_of(made, 0, running=[5] * 19) == [5]
    assert lengths_of(made, 0, running=[5] * 60) == [12]  # a quarter ends every 5 blocks
    assert lengths_of(made, 5, running=[5] * 59) == [17]
    assert lengths_of(made, 40, running=[5] * 60) == [80]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_near_the_median_when_a_third_has_ended(seed: int) -> None:
    rng = random.Random(seed)
    lengths = sorted(rng.randint(1, 99) for _ in range(300))
    made = forecast(lengths[:100])
    assert abs(lengths_of(made, 0, running=[lengths[100]] * 200)[0] - lengths[150]) < 16


def test_it_has_its_min_tokens() -> None:
    assert ends(forecast([5] * 20), lease(least=PROMPT + 11)) == [PROMPT + 11]


def test_only_the_last_answers_count() -> None:
    made = forecast([*[50] * 600, *[5] * 400])
    assert lengths_of(made, 0) == [5]
    assert len(made._ended) == len(made._sorted) == 512


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_that_of_requests_that_grow_page_by_page(seed: int) -> None:
    rng = random.Random(seed)
    loads = [(rng.randint(0, 12), rng.randint(2, 9)) for _ in range(rng.randint(1, 8))]
    leases = [lease(limit=PROMPT + 2 + left, num_pages=held) for left, held in loads]
    leases[-1].pages.clear()  # it would start
    together = [
        sum(held + grown for left, held in loads if left >= grown)
        for grown in range(max(left for left, _ in loads) + 1)
    ]
    used = sum(held for _, held in loads[:-1])
    shared = 7  # pages that several requests found in the tree
    assert PageForecast().peak(leases, used + shared, loads[-1][1]) == shared + max(together)
