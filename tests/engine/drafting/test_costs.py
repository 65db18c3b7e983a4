"""The curve of forward times, and measuring it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from service.decode.modes import Speculative
from service.decode.policy import Reading
from service.engine.drafting.costs import Curve, StepCosts, lower_hull, measure
from service.engine.forward.rows import Row
from service.engine.forward.runner import Runner
from tests.engine.helpers import checked, request
from tests.tiny import tiny_checkpoint


def test_a_curve_is_straight_between_what_was_measured_and_on_beyond_it() -> None:
    curve = Curve(((1, 2.0), (2, 3.0), (4, 7.0)))
    assert [curve.at(rows) for rows in (0, 1, 1.5, 2, 3, 4, 8)] == [2, 2, 2.5, 3, 5, 7, 15]
    assert curve.slope(1, 4) == pytest.approx(5 / 3)
    assert Curve(((1, 2.0),)).at(9) == 2


def test_rows_cost_what_they_read_beyond_those_of_the_curve() -> None:
    costs = StepCosts(Curve(((1, 2.0), (3, 4.0))), page=0.5, prefix=10)
    assert [costs.reading(pages) for pages in (0, 10, 14)] == [0, 0, 2]
    assert costs.behind(14).backbone == Curve(((1, 4.0), (3, 10.0)))


@pytest.mark.parametrize(
    ("times", "points"),
    [
        ([(1, 1.0), (2, 2.0), (4, 4.0)], [(1, 1.0), (2, 2.0), (4, 4.0)]),
        ([(1, 1.0), (2, 9.0), (4, 4.0)], [(1, 1.0), (4, 4.0)]),  # disturbed upwards
        ([(1, 3.0), (2, 2.0), (4, 2.5), (8, 9.0)], [(1, 2.0), (2, 2.0), (4, 2.5), (8, 9.0)]),  # more never takes less
        ([(1, 5.0), (2, 6.0), (4, 1.0), (8, 8.0)], [(1, 1.0), (4, 1.0), (8, 8.0)]),
        ([(1, 1.0), (2, 1.0), (4, 1.0)], [(1, 1.0), (2, 1.0), (4, 1.0)]),
    ],
)
def test_what_was_disturbed_lies_above_the_curve(times: list, points: list) -> None:
    curve = lower_hull(times)
    assert all(curve.at(rows) == pytest.approx(seconds) for rows, seconds in points)
    assert all(curve.at(rows) <= seconds for rows, seconds in times)


def test_an_engine_measures_its_own_forwards_and_changes_no_page_that_is_kept() -> None:
    """A request that comes again reads the pages of the first, and every forward is compared."""
    engine, runner = checked(tiny_checkpoint(1), max_rows=24)
    asked = request("x", tuple(range(5, 25)), Speculative(2))
    (first,) = engine.generate([asked])
    costs = measure(runner.runner, 24, has_mrp=True)
    assert costs.mrp is not None
    for curve in (costs.backbone, costs.mrp):
        assert curve.at(1) > 0
        assert curve.at(24) >= curve.at(1)
    assert costs.draft > 0
    assert costs.page >= 0
    assert costs.prefix == 16
    assert measure(runner.runner, 24, has_mrp=False).mrp is None
    (again,) = engine.generate([asked])
    assert again.stats.cached_tokens == 20
    assert again.token_ids == first.token_ids


def test_where_memory_is_short_forwards_are_measured_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(tiny_checkpoint(1), 24)
    evaluate, asked = runner.evaluate, []

    def small(rows: Sequence[Row]) -> list[Reading]:
        asked.append(len(rows))
        if len(rows) > 8:
            raise torch.OutOfMemoryError
        return evaluate(rows)

    monkeypatch.setattr(runner, "evaluate", small)
    costs = measure(runner, 24, has_mrp=False)
    assert costs.backbone.at(24) >= costs.backbone.at(1) > 0
    assert {24, 16, 12, 8, 6} <= set(asked)
