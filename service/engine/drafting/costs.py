"""The cost of a forward by its rows and the pages that they read, measured once on the engine's own networks.

`pricing.py` uses only ratios of these times, so a machine that is slower as a whole makes the same choices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from service.decode.block import MASKED, Block
from service.decode.canvas import Canvas
from service.decode.draft_budget import DraftBudget
from service.decode.policy import Reading
from service.decode.rules import MostConfident, Rule
from service.decode.tree import tree
from service.engine.drafting.curve import Curve, dented, dents
from service.engine.forward.memory import FittingForward
from service.engine.forward.rows import Row
from service.engine.forward.runner import RowRunner
from service.engine.request import SamplingParams

#: blocks before the measured rows: a context, as running requests have
_PREFIX = 16
#: Number of turns over all sizes; the last turn is made only if there is time left within so many seconds. The fastest
#: forward of each size counts: other work only adds time, and the first run of a size is a cold one.
_TURNS, _BUDGET_S = 3, 0.5
#: seconds of a turn during which a short forward is repeated
_SLICE_S = 0.005
#: A time far above the convex curve below all times is measured in so many turns more. If it stays there, it is a dent:
#: that many rows are dear (oneDNN takes other kernels for them). Else it was disturbed by other work.
_AGAIN = 2
#: For the cost of reading pages: the number of blocks before the rows, and the number of states of one block.
_LONG, _STATES = 256, 8
#: states of the tree whose drafting is measured
_DRAFTS = 2
#: Above so many rows (one request with its largest tree), longer forwards than this are not measured. Their time is
#: dominated by arithmetic, so the curve continues as a straight line.
_LONGEST_S, _LARGEST_TREE = 0.06, 16
#: after a forward of so many seconds no larger one is measured
_TOO_LONG_S = 20.0


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The times of forwards of the backbone and of MRP (None without MRP), in any one unit.

    The rows of the curves read `prefix` pages each. `page`: the time of one more page for a row that shares it with
    other states of its block. `draft`: the time in which a policy finds one state, without forwards.
    """

    backbone: Curve
    mrp: Curve | None = None
    draft: float = 0.0
    page: float = 0.0
    prefix: int = 0

    def reading(self, pages: float) -> float:
        """The additional time of a row that reads `pages` pages, compared with the rows of the curves."""
        return self.page * max(0.0, pages - self.prefix)

    def behind(self, pages: float) -> StepCosts:
        """The costs of rows that read `pages` pages each."""
        more = self.reading(pages)
        backbone = Curve(tuple((rows, seconds + rows * more) for rows, seconds in self.backbone.points))
        return replace(self, backbone=backbone)


def measure(
    runner: RowRunner, max_rows: int, has_mrp: bool, clock: Callable[[], float] = time.perf_counter
) -> StepCosts:
    """Times of 1, 2, 4, … rows up to `max_rows`, by a clock in seconds (`forward/clock.py`).

    It takes about a second. With slow forwards it takes a few forwards of each size up to 16 rows. An engine's own
    runner may be measured between steps, since the rows only read pages.
    """
    counts = [1 << power for power in range(max_rows.bit_length()) if 1 << power < max_rows] + [max_rows]
    row = _row(runner, _PREFIX)._replace(drafts=has_mrp)
    (reading,) = runner.evaluate([row])
    backbone = _fastest(lambda rows: partial(FittingForward().read, runner.evaluate, _apart(row, rows)), counts, clock)
    draft, page = _drafting(row.state, reading, clock), _reading(runner, clock)
    if not has_mrp:
        return StepCosts(backbone, None, draft, page, row.index)
    anchored = row._replace(anchor=reading.handle)
    mrp = _fastest(lambda rows: partial(FittingForward().read, runner.refine, _apart(anchored, rows)), counts, clock)
    return StepCosts(backbone, mrp, draft, page, row.index)


def _row(runner: RowRunner, prefix: int) -> Row:
    """A row of masks after `prefix` pages, or after as many as there are."""
    size = runner.config.block_size
    index = min(prefix, runner.config.max_positions // size - 1)
    pages = [page % runner.num_pages for page in range(index)]
    return Row(Block((MASKED,) * size), index, pages, writes_kv=False, sampling=SamplingParams())


def _apart(row: Row, count: int) -> list[Row]:
    """Rows of `count` different sequences."""
    return [row._replace(pages=[*row.pages]) for _ in range(count)]


def _reading(runner: RowRunner, clock: Callable[[], float]) -> float:
    """The time of one more page for a row that is one of several states of a block."""
    near, far = _row(runner, _PREFIX), _row(runner, _LONG)
    if far.index == near.index:
        return 0.0
    nearer, farther = (_fastest(_states_of(runner, one), [_STATES], clock).at(_STATES) for one in (near, far))
    return max(0.0, farther - nearer) / (_STATES * (far.index - near.index))


def _states_of(runner: RowRunner, row: Row) -> Callable[[int], Callable[[], object]]:
    """Forwards over states of one block."""
    return lambda states: partial(FittingForward().read, runner.evaluate, [row] * states)


def _drafting(state: Block, reading: Reading, clock: Callable[[], float]) -> float:
    """The time per state of drafting a small tree."""
    rule = MostConfident(1)
    canvas = Canvas(state.reveal(rule(reading)), ends=lambda _: False)
    return min(_seconds(lambda: _grown(canvas, reading, rule), clock) for _ in range(20)) / _DRAFTS


def _grown(canvas: Canvas, reading: Reading, rule: Rule) -> int:
    """Grows a small tree without MRP. Returns the number of its states."""
    growing = tree(canvas, reading, rule, DraftBudget(0.0, _DRAFTS))
    try:
        next(growing)
    except StopIteration as grown:
        return len(grown.value)
    raise AssertionError("a tree without MRP asked for it")


def _fastest(
    forward: Callable[[int], Callable[[], object]], counts: Sequence[int], clock: Callable[[], float]
) -> Curve:
    best: dict[int, float] = {}
    for rows in counts:
        best[rows] = _seconds(forward(rows), clock)
        longest = _LONGEST_S if rows >= _LARGEST_TREE else _TOO_LONG_S
        if len(best) > 1 and 2 * best[rows] > longest:
            break

    def again(rows: int) -> None:
        count = max(1, round(_SLICE_S / best[rows]))
        best[rows] = min([best[rows], *(_seconds(forward(rows), clock) for _ in range(count))])

    end = time.perf_counter() + _BUDGET_S
    for turn in range(1, _TURNS):
        for rows in best:
            if turn > 1 and time.perf_counter() > end:
                break
            again(rows)
    for _ in range(_AGAIN):
        for rows in dents(list(best.items())):
            again(rows)
    return dented(list(best.items()))


def _seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """The seconds of a run. Readings are on the CPU, so the forward has ended on its device when they are there."""
    begin = clock()
    run()
    return clock() - begin
