"""Forwards that run out of memory: tried again with half the rows, so that what fits is not lost with what does not.

The size that fitted is remembered, so that the next steps do not pay for the same failure. Knows that torch says "out
of memory" in several ways. Knows no sequences and no modes. Any other error passes through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from service.decode.policy import Prediction
from service.engine.forward.pending import Beginning, Pending, done
from service.engine.forward.rows import Row

_log = logging.getLogger(__name__)

Forward = Callable[[Sequence[Row]], list[Prediction]]

#: what plain RuntimeErrors say of it: torch's allocator for CPUs, cuBLAS
_MESSAGES = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


#: full forwards after which twice as many rows are tried again, and the most of them
_PATIENCE, _LONGEST_PATIENCE = 32, 4096


class FittingForward:
    """One kind of forward, and how many rows of it have fitted of late.

    After a failure at most half as many rows share a forward. After `_PATIENCE` full forwards the limit doubles; each
    doubling that fails makes the next wait twice as long, until one succeeds.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self._patience, self._full = _PATIENCE, 0
        self._probing = False

    def read(self, forward: Forward, rows: Sequence[Row]) -> list[Prediction | None]:
        """A Prediction for every row in order; None for a row whose forward found no memory even alone."""
        return self.begin(lambda chunk: done(forward(chunk)), rows)()

    def begin(self, forward: Beginning, rows: Sequence[Row]) -> Pending[Prediction | None]:
        """As `read`, but the forwards may be under way.

        Rows stay in order, so a row still finds what rows before it wrote. Memory is found when a forward begins.
        """
        begun: list[Pending[Prediction] | Pending[None]] = []
        before, start = self.limit, 0
        while start < len(rows):
            chunk = rows[start : start + (self.limit or len(rows))]
            pending = _attempt(forward, chunk)
            if pending is not None:
                self._fitted(len(chunk))
                begun.append(pending)
                start += len(chunk)
            elif len(chunk) > 1:
                self._failed(len(chunk))
            else:  # too large by itself, which says nothing of the others
                self.limit, self._full, self._probing = before, 0, False
                begun.append(done([None]))
                start += 1
        return lambda: [reading for pending in begun for reading in pending()]

    def _failed(self, rows: int) -> None:
        if self._probing:
            self._patience = min(2 * self._patience, _LONGEST_PATIENCE)
        self.limit, self._full, self._probing = max(1, rows // 2), 0, False

    def _fitted(self, rows: int) -> None:
        if self.limit is None or rows < self.limit:
            return
        if self._probing:
            self._patience, self._probing = _PATIENCE, False
        self._full += 1
        if self._full >= self._patience:
            self.limit, self._full, self._probing = 2 * self.limit, 0, True


def _attempt(forward: Beginning, rows: Sequence[Row]) -> Pending[Prediction] | None:
    try:
        return forward(rows)
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        _log.warning("a forward over %d rows ran out of memory: %s", len(rows), str(error))
    # Only here, behind the handler, the traceback is gone and with it the tensors of the forward
    # (which is also why the log gets a text and not the error).
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return None


def _is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    typed = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return typed or any(message in str(error) for message in _MESSAGES)
