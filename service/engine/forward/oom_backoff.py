"""Forwards that run out of memory are tried again with half the rows, so that what fits is not lost with the rest.

The size that fitted is remembered, so that the next steps do not pay for the same failure. Knows that torch says "out
of memory" in several ways. Knows no requests and no modes. Any other error passes through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from service.decode.policy import Prediction
from service.engine.forward.rows import Row
from service.engine.forward.runner import Pending, done

_log = logging.getLogger(__name__)

#: begins a forward over rows
Forward = Callable[[Sequence[Row]], Pending[Prediction]]

#: texts of plain RuntimeErrors for it: torch's allocator for CPUs, cuBLAS
_MESSAGES = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


#: full forwards after which twice as many rows are tried again, and the most of them
_PATIENCE, _LONGEST_PATIENCE = 32, 4096


class OomBackoff:
    """The limit of rows of one network's forwards.

    After a failure at most half as many rows share a forward. After `_PATIENCE` full forwards the limit doubles; each
    doubling that fails makes the next wait twice as long, until one succeeds.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self._patience, self._full = _PATIENCE, 0
        self._probing = False

    def begin(self, forward: Forward, rows: Sequence[Row]) -> Pending[Prediction | None]:
        """Begins as many forwards as are needed. -> a Prediction for every row, None if a row alone has no memory.

        Rows stay in order, so a row still reads the KV that rows before it wrote. Memory is allocated when a forward
        begins.
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
        return lambda: [prediction for pending in begun for prediction in pending()]

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


def _attempt(forward: Forward, rows: Sequence[Row]) -> Pending[Prediction] | None:
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
