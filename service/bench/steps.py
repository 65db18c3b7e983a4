"""How long a backbone forward and an MRP forward take at a number of rows, and how much of a step is left to win.

From these follow whether drafting pays: with V(r) the time of a forward over r rows relative to one row each for
as many requests, and m that of an MRP forward, K drafts pay when tokens per forward > V(K+1) + K m.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from service.bench.floor import Rates, forward_need
from service.bench.host import host_milliseconds
from service.decode.block import MASKED, Block
from service.engine.forward.networks import Execution
from service.engine.forward.rows import Row
from service.engine.forward.runner import Runner
from service.engine.request import SamplingParams
from service.model import Checkpoint
from service.model.attention import AUTO, PagedCache

#: KV that a bench may hold, in bytes: sequences share pages where theirs together would be more
_MOST_KV = 2**30


@dataclass(frozen=True, slots=True)
class Platform:
    """What a device can do, and the attention that is used on it."""

    rates: Rates
    attention: str = AUTO


@dataclass(frozen=True, slots=True)
class StepTime:
    """Medians in milliseconds at one number of rows, of as many sequences behind `context` tokens.

    `backbone`: a forward with its readings. `host`: the rest of a step in which as many requests decode. `floor`: the
    least that the device could take for the forward, `bound` by memory or arithmetic. `mrp`: None without a module.
    """

    rows: int
    context: int
    backbone: float
    host: float
    floor: float
    bound: str
    mrp: float | None

    @property
    def step(self) -> float:
        """Forward and host."""
        return self.backbone + self.host

    @property
    def ratio(self) -> float:
        """Step over floor: 1 is as fast as the device allows."""
        return self.step / self.floor


def step_times(
    checkpoint: Checkpoint, counts: Sequence[int], prefix_tokens: int, rounds: int, platform: Platform
) -> Iterator[StepTime]:
    """Forwards over rows of masks behind a prefix (in tokens, cut to whole blocks); logits read at every position."""
    size = checkpoint.config.block_size
    prefix = prefix_tokens // size
    runner = _runner(checkpoint, prefix * max(counts), platform.attention)
    state = Block((MASKED,) * size)
    for count in counts:
        pages = [[(row * prefix + page) % runner.num_pages for page in range(prefix)] for row in range(count)]
        rows = [Row(state, prefix, own, writes_kv=False, sampling=SamplingParams()) for own in pages]
        readings = runner.evaluate(rows)
        anchored = [row._replace(anchor=reading.handle) for row, reading in zip(rows, readings, strict=True)]
        backbone = _median(partial(runner.evaluate, rows), checkpoint, rounds)
        mrp = _median(partial(runner.refine, anchored), checkpoint, rounds) if checkpoint.mrp else None
        need = forward_need(checkpoint.config, count, prefix * size, checkpoint.dtype.itemsize)
        host = host_milliseconds(checkpoint, count, rounds)
        yield StepTime(
            count, prefix * size, backbone, host, 1e3 * need.seconds(platform.rates), need.bound(platform.rates), mrp
        )


def _runner(checkpoint: Checkpoint, pages: int, attention: str) -> Runner:
    """With as many pages as there may be."""
    config = checkpoint.config
    page = PagedCache.bytes_per_page(config, checkpoint.dtype)
    return Runner(checkpoint, num_pages=max(1, min(pages, _MOST_KV // page)), execution=Execution(attention))


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
