"""Forwards that run out of memory are tried again with half the rows. The size that fitted is remembered.

Memory is allocated when a forward begins. Rows stay in order, so a row still reads the KV that rows before it wrote.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from service.decode.policy import Prediction
from service.engine.forward.model_forward import Network
from service.engine.forward.pending import Pending, attempt, done
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner

#: the number of full forwards after which the limit of rows doubles
_PATIENCE = 256


@dataclass(slots=True)
class _Limit:
    """The most rows of one network's forwards, None for all. `num_full`: the full forwards since it changed."""

    rows: int | None = None
    num_full: int = 0

    def count(self, rows: int) -> None:
        if self.rows is None or rows < self.rows:
            return
        self.num_full += 1
        if self.num_full == _PATIENCE:
            self.rows, self.num_full = 2 * self.rows, 0


class OomBackoff:
    """Begins the forwards of a runner. A failure halves the limit of rows, `_PATIENCE` full ones double it."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self._limits: defaultdict[Network, _Limit] = defaultdict(_Limit)

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending:
        """As `ModelRunner.begin`. A row that is too large alone leaves the limit as it was before."""
        forwards, too_large = list[Pending](), list[int]()
        limit, start = self._limits[network], 0
        before = limit.rows
        while start < len(rows):
            chunk = rows[start : start + (limit.rows or len(rows))]
            pending = attempt(partial(self.runner.begin, network), chunk)
            if pending is None and len(chunk) > 1:
                limit.rows, limit.num_full = len(chunk) // 2, 0
                continue
            if pending is None:
                limit.rows, limit.num_full = before, 0
                pending = done([Prediction((), (), ())])
                too_large.append(start)
            else:
                limit.count(len(chunk))
            forwards.append(pending)
            start += len(chunk)
        if len(forwards) == 1 and not too_large:
            return forwards[0]
        anchors = [anchor for pending in forwards for anchor in pending.anchors]
        return Pending(anchors, lambda: [prediction for pending in forwards for prediction in pending()], too_large)

    def begin_replays(self, rows: Sequence[Row], counts: Sequence[int]) -> list[Pending] | None:
        """As `ModelRunner.begin_replays`. None also if the device has no memory for them."""
        return attempt(partial(self.runner.begin_replays, counts=counts), rows)
