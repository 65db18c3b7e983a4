"""Forwards that run out of memory: tried again with half the rows, so that what fits is not lost with what does not.

Knows that torch says "out of memory" in several ways; knows no sequences and no modes. Any other error passes through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from service.decode.policy import Reading
from service.engine.rows import Row

_log = logging.getLogger(__name__)

Forward = Callable[[Sequence[Row]], list[Reading]]

#: what plain RuntimeErrors say of it: torch's allocator for CPUs, cuBLAS
_MESSAGES = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


def read_what_fits(forward: Forward, rows: Sequence[Row]) -> list[Reading | None]:
    """A Reading for every row in order; None for a row whose forward found no memory even alone.

    Rows stay in order, so a row still finds what rows before it wrote.
    """
    readings = _attempt(forward, rows)
    if readings is not None:
        return [*readings]
    if len(rows) == 1:
        return [None]
    half = len(rows) // 2
    return read_what_fits(forward, rows[:half]) + read_what_fits(forward, rows[half:])


def _attempt(forward: Forward, rows: Sequence[Row]) -> list[Reading] | None:
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
