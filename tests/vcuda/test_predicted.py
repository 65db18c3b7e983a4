"""The table of predicted steps is that of the present code: nodes, launches and sends of two shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.thinned import fast_only
from tests.vcuda.predicted import SHAPES, predictions

TABLE = Path("dev/lab/results/predicted-steps.json")


@pytest.mark.parametrize("shape", fast_only(("sdar-1.7b").__eq__, SHAPES))
def test_the_table_of_predicted_steps_is_present(shape: str) -> None:
    """If it is not: python -m tests.vcuda.predicted dev/lab/results/predicted-steps.json, with TRITON_INTERPRET=1."""
    stored = {
        (row["shape"], row["block_size"], row["rows"], row["gpu"]): row for row in json.loads(TABLE.read_text("utf-8"))
    }
    rows = list(predictions((shape,), (16,), (1, 32)))
    assert len(rows) == 4
    for row in rows:
        assert stored[row["shape"], row["block_size"], row["rows"], row["gpu"]] == row
        least, most = row["step_over_floor"]
        assert 1 < least < most < 6
