"""A forward that has begun: what later forwards may already read of it, and its results."""

import logging
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TypeVar

import torch
from msgspec import Struct

from service.decode.policy import Prediction
from service.engine.forward.rows import Anchor, Row
from service.model.device import is_out_of_memory

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Pending(Struct, frozen=True):
    """A forward that has begun. Called, it waits until the forward is done, and returns a result for every row.

    `anchors`: its rows', for later forwards. `too_large`: the rows for which alone there was no memory. Their
    requests end, and nothing is read of them.
    """

    anchors: Sequence[Anchor]
    results: Callable[[], Sequence[Prediction]]
    too_large: Sequence[int] = ()

    def __call__(self) -> Sequence[Prediction]:
        return self.results()

    def of_rows(self, indices: Sequence[int]) -> "Pending":
        """The same forward with some of its rows."""

        def results() -> list[Prediction]:
            of_all = self.results()
            return [of_all[index] for index in indices]

        return Pending([self.anchors[index] for index in indices], results)

    def sorted_by(self, order: Sequence[int]) -> "Pending":
        """The same forward with its rows in another order. `order`: the new index of each row."""
        anchors = [anchor for _, anchor in sorted(zip(order, self.anchors, strict=True), key=itemgetter(0))]

        def results() -> list[Prediction]:
            return [result for _, result in sorted(zip(order, self.results(), strict=True), key=itemgetter(0))]

        return Pending(anchors, results)


def done(results: Sequence[Prediction]) -> Pending:
    """A forward that is done."""
    return Pending([result.handle for result in results], lambda: results)


def attempt(forward: Callable[[Sequence[Row]], _T], rows: Sequence[Row]) -> _T | None:
    """Begins rows' forwards. None if there is no memory for them."""
    try:
        return forward(rows)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        _log.warning("a forward over %d rows ran out of memory: %s", len(rows), str(error))
    # Here, after the handler, the traceback is gone, and with it the tensors of the forward. For the same reason the
    # log gets the text of the error only.
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return None
