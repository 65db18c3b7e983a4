"""The table of 8-bit products is that of the present code."""

import json
from pathlib import Path

from tests.vcuda.products import counted_products

PRODUCTS = Path("dev/lab/results/8-bit-products.json")


def test_the_table_of_8_bit_products_is_present():
    """If it is not: python -m tests.vcuda.products dev/lab/results/8-bit-products.json, with TRITON_INTERPRET=1."""
    assert list(counted_products()) == json.loads(PRODUCTS.read_text("utf-8"))


def test_8_bit_products_read_each_matrix_once_and_take_two_kernels_at_most():
    rows = {(row["tokens"], row["quantization"]): row for row in json.loads(PRODUCTS.read_text("utf-8"))}
    for tokens in (16, 64, 256):
        wide = rows[tokens, None]
        for scheme in ("int8", "fp8", "w8a8"):
            row = rows[tokens, scheme]
            assert row["moved_mb"] < 0.75 * wide["moved_mb"]
            assert sum(row["launches"].values()) == (8 if scheme == "w8a8" else 4)
