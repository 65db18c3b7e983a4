"""The curve of forward times, and measuring it."""

from collections.abc import Callable, Sequence
from itertools import count

import pytest
import torch

from service.decode.modes import Speculative
from service.engine.drafting.costs import Curve, StepCosts, measure, monotone
from service.engine.forward.model_forward import Network
from service.engine.forward.pending import Pending, done
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from tests.engine.helpers import checked, request_of
from tests.tiny import tiny_checkpoint


def test_a_curve_is_straight_between_what_was_measured_and_on_beyond_it() -> None:
    curve = Curve(((1, 2.0), (2, 3.0), (4, 7.0)))
    assert [curve.at(rows) for rows in (0, 1, 1.5, 2, 3, 4, 8)] == [2, 2, 2.5, 3, 5, 7, 15]
    assert Curve(((1, 2.0),)).at(9) == 2


def test_rows_are_filled_up_to_the_next_size() -> None:
    curve = Curve(((1, 2.0), (16, 17.0)), sizes=(1, 4, 8))
    assert [curve.filled(rows) for rows in (1, 2, 4, 5, 8, 9)] == [2, 5, 5, 9, 9, 10]


def test_rows_cost_what_they_read_beyond_those_of_the_curve() -> None:
    priced = StepCosts(Curve(((1, 2.0), (3, 4.0))), page=0.5, prefix=10)
    assert [priced.reading(pages) for pages in (0, 10, 14)] == [0, 0, 2]


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([1.0, 2.0, 4.0], [1, 2, 4]),
        ([1.0, 9.0, 4.0], [1, 4, 4]),  # disturbed
        ([3.0, 2.0, 2.5], [2, 2, 2.5]),
        ([2.0, 6.4, 8.7], [2, 6.4, 8.7]),  # some numbers of rows are dear
        ([5.0], [5]),
    ],
)
def test_more_rows_never_take_less(times: list[float], seconds: list[float]) -> None:
    rows = [1 << power for power in range(len(times))]
    curve = monotone([*zip(rows, times, strict=True)])
    assert [curve.at(count) for count in rows] == seconds


def test_an_engine_measures_its_own_forwards_and_changes_no_page_that_is_kept() -> None:
    """A request that comes again reads the pages of the first, and every forward is compared."""
    engine, runner = checked(tiny_checkpoint(1), max_rows=24)
    generation = request_of("x", tuple(range(5, 25)), Speculative(2))
    (first,) = engine.generate([generation])
    costs = measure(runner.runner, 24, has_mrp=True)
    assert costs.mrp is not None
    for curve in (costs.backbone, costs.mrp):
        assert curve.at(1) > 0
        assert curve.at(24) >= curve.at(1)
    assert costs.draft > 0
    assert costs.page >= 0
    assert costs.prefix == 16
    assert measure(runner.runner, 24, has_mrp=False).mrp is None
    (again,) = engine.generate([generation])
    assert again.stats.cached_tokens == 20
    assert again.token_ids == first.token_ids


def test_where_memory_is_short_forwards_are_measured_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(tiny_checkpoint(1), 24)
    begin, sizes = runner.begin, []

    def small(network: Network, rows: Sequence[Row]) -> Pending:
        sizes.append(len(rows))
        if len(rows) > 8:
            raise torch.OutOfMemoryError
        return begin(network, rows)

    monkeypatch.setattr(runner, "begin", small)
    ticks = count(step=0.001)  # so no forward is too slow for a larger one to be measured
    costs = measure(runner, 24, has_mrp=False, clock=lambda: next(ticks))
    assert costs.backbone.at(24) >= costs.backbone.at(1) > 0
    assert {24, 16, 12, 8, 6} <= set(sizes)


class Slow:
    """A runner whose forwards move a clock: by their rows, and three times as much when a size comes first."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.runner, self._seconds = ModelRunner(tiny_checkpoint(1), 300), seconds
        self.now, self.sizes = 0.0, list[int]()
        self.config, self.device, self.model = self.runner.config, self.runner.device, self.runner.model

    def clock(self) -> float:
        return self.now

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending:
        count = len(rows)
        self.now += self._seconds(count) * (1 if count in self.sizes else 3)
        self.sizes.append(count)
        return done(self.runner.begin(network, rows[:1])() * count)


def test_slow_forwards_are_measured_up_to_the_largest_tree_and_warm() -> None:
    """As the 1.7B shape on a CPU: bound by memory up to some rows, then by arithmetic."""

    def seconds(rows: int) -> float:
        return max(0.3, 0.08 * rows) + 0.001 * rows

    slow = Slow(seconds)
    curve = measure(slow, 256, has_mrp=False, clock=slow.clock).backbone
    assert {rows for rows, _ in curve.points} <= {1, 2, 4, 8, 16}
    for rows in (1, 2, 4, 8, 16, 40):
        assert curve.at(rows) == pytest.approx(seconds(rows), rel=0.12)
    assert max(slow.sizes) == 16


def test_a_dent_is_measured_again_and_stays_only_if_it_is_there_each_time() -> None:
    def dear_at_four(rows: int) -> float:
        return 0.6 if rows == 4 else 0.1 * rows + 0.1

    def disturbed_at_first(rows: int) -> float:
        return 0.9 if rows == 4 and slow.sizes.count(4) < 3 else 0.1 * rows + 0.1

    slow = Slow(dear_at_four)
    assert measure(slow, 256, has_mrp=False, clock=slow.clock).backbone.at(4) == pytest.approx(0.6)
    slow = Slow(disturbed_at_first)
    assert measure(slow, 256, has_mrp=False, clock=slow.clock).backbone.at(4) == pytest.approx(0.5)
