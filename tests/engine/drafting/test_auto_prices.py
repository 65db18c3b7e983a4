"""`mrp_steps: auto` by prices that are measured while CUDA graphs are captured, on a clock that only forwards move.

Forwards have the times that SDAR-8B's shape in bfloat16 took on an H100.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.options import heldout
from benchmarks.throughput import Workload, encoded
from service.decode.block import Pick
from service.decode.mode import DecodingMode
from service.decode.modes import Speculative, Static
from service.demo import CHECKPOINT
from service.engine import Engine, EngineConfig, EngineDeps
from service.engine.drafting import costs
from service.engine.drafting.costs import Curve, StepCosts, lower_hull, measure
from service.engine.forward.model_forward import Network
from service.engine.forward.pending import Pending, done
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from service.engine.memory_plan import GRAPH_ROWS
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.text import TextCodec
from tests.predictions import prediction_of

MEASURED = Path("dev/lab/results/h100-2026-11-26")
#: seconds of a capture, and the most rows of a forward: no larger one was measured
CAPTURE_S, MAX_ROWS = 0.05, 128


def padded(rows: int) -> int:
    return GRAPH_ROWS[bisect_left(GRAPH_ROWS, rows)]


class Times:
    """Seconds of forwards on the card, by rows that are filled up to the size of a graph.

    Each measured row is of a sequence of its own behind 1,024 tokens. A time is on the convex curve below the
    measured ones, since other work only adds time. `host`: a step's time beside its forwards, by requests.
    """

    def __init__(self, block_size: int) -> None:
        lines = [line for path in MEASURED.glob("steps-*.jsonl") for line in path.read_text("utf-8").splitlines()]
        selection = {"what": "step", "shape": "sdar-8b", "block": block_size, "quant": None}
        steps = [row for row in map(json.loads, lines) if row.items() >= selection.items()]
        self._networks: dict[Network, Curve] = {"backbone": _curve(steps, "backbone"), "mrp": _curve(steps, "mrp")}
        self.host = _curve(steps, "host")

    def seconds(self, network: Network, rows: int) -> float:
        return self._networks[network].at(padded(rows))


def _curve(steps: Sequence[dict[str, float]], part: str) -> Curve:
    return lower_hull([(int(step["rows"]), 1e-3 * step[part]) for step in steps])


class Capturing:
    """A runner whose first forward of each size of a graph takes `CAPTURE_S` more. It computes nothing."""

    def __init__(self, times: Times, block_size: int) -> None:
        self.config = SimpleNamespace(block_size=block_size, max_positions=32768, mask_token_id=4)
        self.model = SimpleNamespace(num_pages=100_000, graphs=SimpleNamespace(sizes=GRAPH_ROWS))
        self.now = 0.0
        self._times, self._captured = times, set[tuple[Network, int]]()

    def clock(self) -> float:
        return self.now

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending:
        if (network, padded(len(rows))) not in self._captured:
            self._captured.add((network, padded(len(rows))))
            self.now += CAPTURE_S
        self.now += self._times.seconds(network, len(rows))
        picks = [Pick(position, 7, 0.5) for position in range(self.config.block_size)]
        return done([prediction_of(picks) for _ in rows])

    def begin_replays(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        """There is no graph for a chain."""


class Timed:
    def __init__(self, runner: ModelRunner, times: Times) -> None:
        self._runner, self._times, self.seconds = runner, times, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending:
        self.seconds += self._times.seconds(network, len(rows))
        if network == "backbone":
            self.seconds += self._times.host.at(len({id(row.pages) for row in rows}))
        return self._runner.begin(network, rows)


def demo(block_size: int) -> Checkpoint:
    return load_checkpoint(CHECKPOINT, LoadOptions(block_size=block_size))


def table_of(times: Times, block_size: int, monkeypatch: pytest.MonkeyPatch) -> StepCosts:
    """The table of prices that an engine measures on the clock. The host's drafting does not move it."""
    runner = Capturing(times, block_size)
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=runner.clock))
    return measure(runner, MAX_ROWS, has_mrp=True, clock=runner.clock)


def tokens_per_second(
    checkpoint: Checkpoint, mode: DecodingMode, requests: int, times: Times, table: StepCosts
) -> float:
    """Of the demo's problems, `requests` at once, by the clock."""
    timed = list[Timed]()

    def runner(*arguments: object) -> Timed:
        timed.append(Timed(ModelRunner(*arguments), times))
        return timed[0]

    config = EngineConfig(max_running=requests, max_rows=MAX_ROWS, kv_cache_tokens=requests * 512, prefix_cache=False)
    engine = Engine(checkpoint, config, deps=EngineDeps(costs=table, runner=runner))
    workload = Workload(encoded(TextCodec.load(CHECKPOINT), heldout(256, seed=1)))
    numbers = range(max(workload.fewest, 3 * requests))
    completions = engine.generate(workload.requests(mode, numbers, frozenset(checkpoint.config.eos_token_ids)))
    return sum(completion.stats.decoded_tokens for completion in completions) / timed[0].seconds


@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_captures_are_in_no_price(block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They once ended the table at 16 rows: T(256) of blocks of 4 was a quarter of the true time."""
    times = Times(block_size)
    table = table_of(times, block_size, monkeypatch)
    assert table.mrp is not None
    for rows in (1, 2, 4, 8, 16, 32, 64, 128):
        assert table.backbone.at(rows) == pytest.approx(times.seconds("backbone", rows), rel=0.02)
        assert table.mrp.at(rows) == pytest.approx(times.seconds("mrp", rows), rel=0.02)


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
@pytest.mark.parametrize("requests", [1, 8, 32])
@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_auto_is_the_best_fixed_plan(block_size: int, requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 2 % of its tokens per second, the time in which `auto` learns included."""
    checkpoint, times = demo(block_size), Times(block_size)
    table = table_of(times, block_size, monkeypatch)
    plans = (*FIXED, *(LONG if block_size > 8 and 8 * requests <= MAX_ROWS else ()))
    fixed = {mode: tokens_per_second(checkpoint, mode, requests, times, table) for mode in plans}
    best = max(fixed, key=fixed.__getitem__)
    auto = tokens_per_second(checkpoint, Speculative("auto"), requests, times, table)
    assert auto >= 0.98 * fixed[best], (auto, fixed)
