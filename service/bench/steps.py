"""How long a backbone forward and an MRP forward take at a number of rows.

From these follow whether drafting pays: with V(r) the time of a forward over r rows relative to one row each for
as many requests, and m that of an MRP forward, K drafts pay when tokens per forward > V(K+1) + K m.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from service.decode.block import MASKED, Block
from service.engine.forward.rows import Row
from service.engine.forward.runner import Backend, Runner
from service.engine.request import SamplingParams
from service.model import Checkpoint
from service.model.attention import AUTO


@dataclass(frozen=True, slots=True)
class StepTime:
    """Medians in milliseconds at one number of rows; `mrp` is None without an MRP module."""

    rows: int
    backbone: float
    mrp: float | None


def step_times(
    checkpoint: Checkpoint, counts: Sequence[int], prefix_tokens: int, rounds: int, attention: str = AUTO
) -> Iterator[StepTime]:
    """Forwards over rows of masks behind a prefix (in tokens, cut to whole blocks); logits read at every position."""
    size = checkpoint.config.block_size
    prefix = prefix_tokens // size
    runner = Runner(checkpoint, num_pages=max(1, prefix), backend=Backend(attention))
    pages = range(prefix)
    state = Block((MASKED,) * size)
    for count in counts:
        rows = [Row(state, prefix, pages, keeps=False, sampling=SamplingParams()) for _ in range(count)]
        readings = runner.evaluate(rows)
        anchored = [replace(row, anchor=reading.handle) for row, reading in zip(rows, readings, strict=True)]
        backbone = _median(partial(runner.evaluate, rows), checkpoint, rounds)
        mrp = _median(partial(runner.refine, anchored), checkpoint, rounds) if checkpoint.mrp else None
        yield StepTime(count, backbone, mrp)


def _median(run: Callable[[], object], checkpoint: Checkpoint, rounds: int) -> float:
    """Milliseconds; the first run warms up and does not count."""
    times = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        run()
        if checkpoint.device.type == "cuda":
            torch.cuda.synchronize(checkpoint.device)
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[1:])
