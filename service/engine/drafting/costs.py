"""The cost of a forward by its rows and the pages that they read, measured once on the engine's own networks.

`planner.py` uses only ratios of these times, so a machine that is slower as a whole makes the same choices.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from msgspec import structs

from service.decode.canvas import Canvas, DraftBudget
from service.decode.drafts import tree
from service.decode.policy import Prediction
from service.decode.rules import TopConfidence
from service.engine.forward.model_forward import Network
from service.engine.forward.oom_backoff import OomBackoff
from service.engine.forward.rows import Row, apart, masked_row
from service.engine.forward.runner import ModelRunner

#: blocks before the measured rows: a context, as running requests have
_PREFIX = 16
#: The number of rounds over all sizes, and the seconds after which the last round ends. The fastest forward of each
#: size counts, since other work only adds time. The first run of a size is not timed: it may compile kernels or capture
#: a CUDA graph, and would hide the sizes behind it.
_ROUNDS, _BUDGET_S = 3, 0.5
#: seconds of a round during which a short forward is repeated
_SLICE_S = 0.005
#: for the cost of reading pages: the number of blocks before the rows, and the number of states of one block
_LONG, _STATES = 256, 8
#: the states of the tree whose search is measured, and the searches, each after a forward
_DRAFTS, _TREES = 2, 5
#: Forwards of more rows than the largest tree of one request are measured up to this many seconds. Arithmetic dominates
#: the time of longer forwards, so the curve continues as a straight line.
_LONGEST_S, _LARGEST_TREE = 0.06, 16
#: the forwards that begin ahead, one after another, when their time is measured
_AHEAD = 3
#: seconds of a forward after which no larger one is measured
_TOO_LONG_S = 20.0


@dataclass(frozen=True, slots=True)
class Curve:
    """The time of a forward by its rows: linear between the points (rows, time) and beyond the last one.

    `sizes`: the numbers of rows to which forwards are filled up, ascending. Larger forwards are not filled up.
    """

    points: tuple[tuple[int, float], ...]
    sizes: tuple[int, ...] = ()

    def at(self, rows: float) -> float:
        if len(self.points) == 1:
            return self.points[0][1]
        index = min(max(1, bisect_right(self.points, (rows, 0.0))), len(self.points) - 1)
        (low, fast), (high, slow) = self.points[index - 1], self.points[index]
        return fast + (slow - fast) * (max(rows, self.points[0][0]) - low) / (high - low)

    def filled(self, rows: int) -> float:
        index = bisect_left(self.sizes, rows)
        return self.at(self.sizes[index] if index < len(self.sizes) else rows)


def monotone(times: Sequence[tuple[int, float]]) -> Curve:
    """The curve of measured times, by ascending rows: more rows never take less, since other work only adds time."""
    rows, seconds = zip(*times, strict=True)
    return Curve(tuple(zip(rows, reversed([*accumulate(reversed(seconds), min)]), strict=True)))


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The times of forwards of the backbone and of MRP (None without MRP), all in one unit.

    The rows of the curves read `prefix` pages each. `page`: the time of one more page for a row. `draft`: the time in
    which a policy finds one state, right after a forward, whose layers have emptied the caches.
    `turn`: the time that a forward begun ahead of the last one's results saves, by its rows; None: none begins ahead.
    """

    backbone: Curve
    mrp: Curve | None = None
    draft: float = 0.0
    page: float = 0.0
    prefix: int = 0
    turn: Curve | None = None

    def reading(self, pages: float) -> float:
        """The additional time of a row that reads `pages` pages, compared with the rows of the curves."""
        return self.page * max(0.0, pages - self.prefix)


def measure(
    runner: ModelRunner,
    max_rows: int,
    has_mrp: bool,
    clock: Callable[[], float] = time.perf_counter,
    *,
    ahead: bool = False,
) -> StepCosts:
    """Times of 1, 2, 4, … rows up to `max_rows`, by a clock in seconds (`forward_clock`). Takes about a second.

    `ahead`: whether forwards may begin ahead of the last one's results. MRP's then begin together. The runner of an
    engine may be measured between steps, since the rows only read pages.
    """
    counts = [1 << power for power in range(max_rows.bit_length()) if 1 << power < max_rows] + [max_rows]
    row = structs.replace(masked_row(runner.config, runner.model.num_pages, _PREFIX), drafts=has_mrp)
    (prediction,) = runner.begin("backbone", [row])()
    backbone = _fastest(lambda rows: _forward(runner, "backbone", apart(row, rows)), counts, clock)
    graphs = runner.model.graphs
    backbone = replace(backbone, sizes=tuple(graphs.sizes) if graphs is not None else ())
    draft = _searching(runner, row, clock)
    page, mrp = _reading(runner, clock), None
    if has_mrp:
        anchored = structs.replace(row, anchor=prediction.handle, rule=TopConfidence() if ahead else None)
        together = _AHEAD if ahead else 1
        mrp = _fastest(lambda rows: _together(runner, apart(anchored, rows), together), counts, clock)
        points = tuple((rows, seconds / together) for rows, seconds in mrp.points)
        mrp = replace(mrp, points=points, sizes=backbone.sizes)
    turn = _turns(runner, row, backbone, clock) if ahead else None
    return StepCosts(backbone, mrp, draft, page, prefix=row.index, turn=turn)


def _forward(runner: ModelRunner, network: Network, rows: list[Row]) -> Callable[[], object]:
    def run() -> None:
        OomBackoff(runner).begin(network, rows)()

    return run


def _together(runner: ModelRunner, rows: list[Row], count: int) -> Callable[[], object]:
    """MRP's forwards for drafts, of which some begin before one is read."""

    def run() -> None:
        backoff = OomBackoff(runner)
        replays = backoff.begin_replays(rows, [count] * len(rows))
        for forward in replays or [backoff.begin("mrp", rows) for _ in range(count)]:
            forward()

    return run


def _turns(runner: ModelRunner, row: Row, backbone: Curve, clock: Callable[[], float]) -> Curve:
    """The time that a forward saves that begins before the last one is read. `backbone`: that of forwards in turns."""

    def several(rows: int) -> Callable[[], object]:
        def run() -> None:
            begin, members = partial(OomBackoff(runner).begin, "backbone"), apart(row, rows)
            pending = begin(members)
            for _ in range(_AHEAD):
                following = begin(members)
                pending()
                pending = following
            pending()

        return run

    counts = [rows for rows, _ in backbone.points[:-1]] or [backbone.points[0][0]]
    times = _fastest(several, counts, clock)
    saved = ((rows, backbone.at(rows) - (times.at(rows) - backbone.at(rows)) / _AHEAD) for rows in counts)
    return Curve(tuple((rows, max(0.0, seconds)) for rows, seconds in saved))


def _reading(runner: ModelRunner, clock: Callable[[], float]) -> float:
    near, far = (masked_row(runner.config, runner.model.num_pages, index) for index in (_PREFIX, _LONG))
    if far.index == near.index:
        return 0.0

    def seconds(row: Row) -> float:
        return _fastest(lambda states: _forward(runner, "backbone", [row] * states), [_STATES], clock).at(_STATES)

    return max(0.0, seconds(far) - seconds(near)) / (_STATES * (far.index - near.index))


def _searching(runner: ModelRunner, row: Row, clock: Callable[[], float]) -> float:
    rule, times = TopConfidence(1), list[float]()

    def draft(canvas: Canvas, prediction: Prediction) -> None:
        for _ in tree(canvas, prediction, rule, DraftBudget(0.0, _DRAFTS)):
            raise AssertionError("a tree without MRP asked for it")

    for _ in range(_TREES):
        (prediction,) = runner.begin("backbone", [row])()
        canvas = Canvas(row.state.reveal(rule(prediction)), ends=lambda _: False)
        search = partial(draft, canvas, prediction)
        times.append(_seconds(search, clock) / _DRAFTS)
    return min(times)


def _fastest(
    forward: Callable[[int], Callable[[], object]], counts: Sequence[int], clock: Callable[[], float]
) -> Curve:
    """The shortest measured times. `forward`: the function that runs a forward, by its number of rows."""
    best: dict[int, float] = {}
    for rows in counts:
        forward(rows)()
        best[rows] = _seconds(forward(rows), clock)
        longest = _LONGEST_S if rows >= _LARGEST_TREE else _TOO_LONG_S
        if len(best) > 1 and 2 * best[rows] >= longest:
            break

    end = time.perf_counter() + _BUDGET_S
    for _ in range(1, _ROUNDS):
        for rows, fastest in best.items():
            if time.perf_counter() > end:
                break
            count = max(1, round(_SLICE_S / fastest))
            best[rows] = min([fastest, *(_seconds(forward(rows), clock) for _ in range(count))])
    return monotone([*best.items()])


def _seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """The seconds of a run. Predictions are on the CPU, so the device has computed the forward when they are there."""
    begin = clock()
    run()
    return clock() - begin
