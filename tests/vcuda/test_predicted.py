"""The tables of predicted steps and of 8-bit products are those of the present code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.thinned import fast_only
from tests.vcuda.predicted import SHAPES, predictions
from tests.vcuda.products import counted_products

TABLE = Path("dev/lab/results/predicted-steps.json")
PRODUCTS = Path("dev/lab/results/8-bit-products.json")


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


def test_the_table_of_8_bit_products_is_present() -> None:
    """If it is not: python -m tests.vcuda.products dev/lab/results/8-bit-products.json, with TRITON_INTERPRET=1."""
    assert list(counted_products()) == json.loads(PRODUCTS.read_text("utf-8"))


def test_8_bit_products_read_each_matrix_once_and_take_two_kernels_at_most() -> None:
    rows = {(row["tokens"], row["quantization"]): row for row in json.loads(PRODUCTS.read_text("utf-8"))}
    for tokens in (16, 64, 256):
        wide = rows[tokens, None]
        for scheme in ("int8", "fp8", "w8a8"):
            row = rows[tokens, scheme]
            assert row["moved_mb"] < 0.75 * wide["moved_mb"]
            assert row["least_us"] <= wide["least_us"]
            assert sum(row["launches"].values()) == (8 if scheme == "w8a8" else 4)
