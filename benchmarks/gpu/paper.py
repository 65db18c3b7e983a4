"""Stage 2. The rows of the MRP paper's speed tables (arXiv 2605.18817), and the autoregressive yardstick.

The paper's rows are `static`, `speculative` with K = 3 and `direct` with K = 1 and 2. `auto` is this engine's own
choice. The rows of 8B in blocks of 16 have the paper's speed-up over static beside ours. The weights are the demo's at
published sizes. So the speed is of those sizes, and the acceptance is the demo's, which was trained with one block size
only.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.autoregressive import AutoregressiveLoop
from benchmarks.gpu.rows import Extent, Rows
from benchmarks.gpu.speed import plan_rows
from benchmarks.inflated import inflate
from benchmarks.shapes import SHAPES
from loadtest.paper.published import paper_cell
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Speculative, Static
from service.demo import CHECKPOINT
from service.engine import EngineConfig
from service.model import Checkpoint, LoadOptions

PAPER: tuple[DecodingMode, ...] = (Static(), Speculative(3), Direct(1), Direct(2), Speculative("auto"))
#: tokens of the yardstick's prompts: the length of the demo's problems
_PROMPT_TOKENS = 16


def measure_paper(rows: Rows, device: torch.device, dtype: torch.dtype, extent: Extent) -> None:
    """For each shape, the last first: the yardstick, then every plan at every load, by block size.

    The default order of shapes ends with 8B. So 8B is measured before the time is over.
    """
    options = LoadOptions(dtype, str(device))
    for shape in reversed(extent.shapes):
        rates: dict[int, float] = {}
        for block_size in extent.block_sizes:
            if rows.over(f"{shape}, blocks of {block_size}"):
                return
            checkpoint = inflate(CHECKPOINT, SHAPES[shape], replace(options, block_size=block_size))
            rates = rates or _autoregressive(rows, shape, checkpoint, extent)
            for concurrency in extent.concurrencies:
                if rows.over(f"{shape}, blocks of {block_size}, {concurrency} together"):
                    return
                for mode, row in zip(PAPER, plan_rows(checkpoint, concurrency, extent, PAPER), strict=True):
                    beside = row["tokens_per_s"] / rates[concurrency] if concurrency in rates else None
                    row["paper_times_static"] = paper_cell(shape, block_size, mode).speedup
                    rows.write("paper", shape=shape, block_size=block_size, **row, times_autoregressive=beside)
        if extent.torch_profiler_dir and not rows.over(f"{shape}, traces"):
            _trace(rows, shape, checkpoint, extent)


def _autoregressive(rows: Rows, shape: str, checkpoint: Checkpoint, extent: Extent) -> dict[int, float]:
    """Tokens a second at each load. Loads for which no time is left are missing."""
    loop, rates = AutoregressiveLoop(checkpoint), dict[int, float]()
    for concurrency in extent.concurrencies:
        if rows.over(f"{shape}, autoregressive, {concurrency} together"):
            break
        rate = loop.tokens_per_s(concurrency, _PROMPT_TOKENS, extent.new_tokens, extent.rounds)
        rows.write("autoregressive", shape=shape, concurrency=concurrency, tokens_per_s=rate)
        rates[concurrency] = rate
    return rates


def _trace(rows: Rows, shape: str, checkpoint: Checkpoint, extent: Extent) -> None:
    """A trace for each plan at the highest load. No times, since the profiler slows the steps."""
    config = EngineConfig(torch_profiler_dir=extent.torch_profiler_dir)
    for plan in PAPER[:2]:
        list(plan_rows(checkpoint, max(extent.concurrencies), extent, (plan,), config))
    rows.write("traces", shape=shape, folder=str(extent.torch_profiler_dir))
