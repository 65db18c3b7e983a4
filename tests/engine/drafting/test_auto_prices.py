"""`mrp_steps: auto` by prices that are measured while CUDA graphs are captured, on a clock that only forwards move."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.options import heldout
from benchmarks.predict import GPUS, Assumptions, Prices, predict
from benchmarks.shapes import config_in_shape, shape_named
from benchmarks.throughput import Workload, encoded
from service.decode.block import Pick
from service.decode.mode import DecodingMode
from service.decode.modes import Speculative, Static
from service.decode.policy import Prediction
from service.demo import CHECKPOINT
from service.engine.drafting import costs
from service.engine.drafting.costs import StepCosts, measure
from service.engine.forward.model_forward import Network
from service.engine.forward.rows import Row
from service.engine.forward.runner import Pending, done
from service.engine.memory_plan import GRAPH_ROWS
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.text import TextCodec
from tests.predictions import prediction_of

#: seconds of a capture, and the most rows of a forward
CAPTURE_S, MAX_ROWS = 0.05, 256
#: SDAR-8B on an H200
SHAPE, GPU = "sdar-8b", "h200"


def padded(rows: int) -> int:
    """The rows of the graph that computes a forward."""
    return GRAPH_ROWS[bisect_left(GRAPH_ROWS, rows)]


class GraphPrices(Prices):
    """Prices of forwards whose rows are filled up to the size of a graph. Padding reads no pages."""

    def backbone(self, rows: int, sequences: int) -> float:
        return super().backbone(padded(rows), sequences)

    def mrp(self, rows: int, sequences: int) -> float:
        return super().mrp(padded(rows), sequences)


class Capturing:
    """A runner whose first forward of each size of a graph takes `CAPTURE_S` more. It computes nothing."""

    def __init__(self, prices: Prices, block_size: int) -> None:
        self.config = SimpleNamespace(block_size=block_size, max_positions=32768, mask_token_id=4)
        self.num_pages, self.now, self.graph_sizes = 100_000, 0.0, GRAPH_ROWS
        self._prices, self._captured = prices, set[tuple[Network, int]]()

    def clock(self) -> float:
        return self.now

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending[Prediction]:
        size = padded(len(rows))
        if (network, size) not in self._captured:
            self._captured.add((network, size))
            self.now += CAPTURE_S
        sequences = len({id(row.pages) for row in rows})
        self.now += (self._prices.backbone if network == "backbone" else self._prices.mrp)(len(rows), sequences)
        picks = [Pick(position, 7, 0.5) for position in range(self.config.block_size)]
        return done([prediction_of(picks) for _ in rows])


def demo(block_size: int) -> Checkpoint:
    return load_checkpoint(CHECKPOINT, LoadOptions(block_size=block_size))


def prices_of(checkpoint: Checkpoint) -> Prices:
    return GraphPrices(config_in_shape(checkpoint, shape_named(SHAPE)), GPUS[GPU], Assumptions())


def measured(prices: Prices, block_size: int, monkeypatch: pytest.MonkeyPatch) -> StepCosts:
    """The measured table. The host's time to draft does not move the clock, so it is the assumed time."""
    runner = Capturing(prices, block_size)
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=runner.clock))
    return replace(measure(runner, MAX_ROWS, has_mrp=True, clock=runner.clock), draft=Assumptions().state_s)


@pytest.mark.parametrize("block_size", [4, 16])
def test_captures_are_in_no_price(block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They once ended the table at 16 rows: T(256) of blocks of 4 was a quarter of the true time."""
    prices = prices_of(demo(block_size))
    table = measured(prices, block_size, monkeypatch)
    for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        assert table.backbone.at(rows) == pytest.approx(prices.backbone(rows, rows), rel=0.02)
        assert table.mrp is not None
        assert table.mrp.at(rows) == pytest.approx(prices.mrp(rows, rows), rel=0.02)


FIXED: tuple[DecodingMode, ...] = (
    Static(),
    Speculative(0, 1),
    Speculative(0, 2),
    Speculative(0, 4),
    Speculative(1, 2),
    Speculative(1, 4),
    Speculative(2),
    Speculative(2, 4),
)
LONG: tuple[DecodingMode, ...] = (Speculative(0, 8), Speculative(2, 8), Speculative(0, 12))


@pytest.mark.slow
@pytest.mark.parametrize("requests", [1, 8, 32, 128])
@pytest.mark.parametrize("block_size", [4, 16])
def test_auto_is_the_best_fixed_plan(block_size: int, requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 2 % of its tokens per second, the time in which `auto` learns included."""
    checkpoint = demo(block_size)
    prices = prices_of(checkpoint)
    table = measured(prices, block_size, monkeypatch)
    workload = Workload(encoded(TextCodec.load(CHECKPOINT), heldout(256, seed=1)), fewest=48)
    plans = (Speculative("auto"), *FIXED, *(LONG if block_size > 4 else ()))
    auto, *fixed = predict(checkpoint, workload, plans, requests, prices, table)
    best = max(fixed, key=lambda plan: plan.tokens_per_second)
    assert auto.tokens_per_second >= 0.98 * best.tokens_per_second, best.params
