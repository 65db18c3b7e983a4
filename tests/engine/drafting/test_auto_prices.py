"""The prices of drafts, measured while CUDA graphs are captured, on a clock that only forwards move.

Forwards have the times that SDAR-8B's shape in bfloat16 took on an H100.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.decode.block import Pick
from service.engine.drafting import costs
from service.engine.drafting.costs import Curve, StepCosts, measure, monotone
from service.engine.forward.model_forward import Network
from service.engine.forward.pending import Pending, done
from service.engine.forward.rows import Row
from service.engine.memory_plan import GRAPH_ROWS
from tests.predictions import prediction_of

MEASURED = Path("dev/lab/results/h100-2026-11-26")
#: seconds of a capture, and the most rows of a forward: no larger one was measured
CAPTURE_S, MAX_ROWS = 0.05, 128


def padded(rows: int) -> int:
    return GRAPH_ROWS[bisect_left(GRAPH_ROWS, rows)]


class Times:
    """Seconds of forwards on the card, by rows that are filled up to the size of a graph.

    Each measured row is of a sequence of its own behind 1,024 tokens. More rows never take less.
    """

    def __init__(self, block_size: int) -> None:
        lines = [line for path in MEASURED.glob("steps-*.jsonl") for line in path.read_text("utf-8").splitlines()]
        selection = {"what": "step", "shape": "sdar-8b", "block": block_size, "quant": None}
        steps = [row for row in map(json.loads, lines) if row.items() >= selection.items()]
        self._networks: dict[Network, Curve] = {"backbone": _curve(steps, "backbone"), "mrp": _curve(steps, "mrp")}

    def seconds(self, network: Network, rows: int) -> float:
        return self._networks[network].at(padded(rows))


def _curve(steps: Sequence[dict[str, float]], part: str) -> Curve:
    return monotone([(int(step["rows"]), 1e-3 * step[part]) for step in steps])


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


def table_of(times: Times, block_size: int, monkeypatch: pytest.MonkeyPatch) -> StepCosts:
    """The table of prices that an engine measures on the clock. The host's drafting does not move it."""
    runner = Capturing(times, block_size)
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=runner.clock))
    return measure(runner, MAX_ROWS, has_mrp=True, clock=runner.clock)


@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_captures_are_in_no_price(block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They once ended the table at 16 rows: T(256) of blocks of 4 was a quarter of the true time."""
    times = Times(block_size)
    table = table_of(times, block_size, monkeypatch)
    assert table.mrp is not None
    for rows in (1, 2, 4, 8, 16, 32, 64, 128):
        assert table.backbone.at(rows) == pytest.approx(times.seconds("backbone", rows), rel=0.02)
        assert table.mrp.at(rows) == pytest.approx(times.seconds("mrp", rows), rel=0.02)
