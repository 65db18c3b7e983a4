"""A Triton kernel: activations times an 8-bit matrix. Read by `linear.py` alone.

A program has TILE rows and STEP columns of the result. It walks over K and widens the 8-bit numbers in registers, so
that memory is read once and in 8 bits. Sums are fp32 and in one order, whatever the number of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

#: rows, columns and depth of a tile
_TILE, _STEP, _DEPTH = 16, 32, 128


@triton.jit
def multiply(
    x,  # [M, K], dense
    values,  # [N, K], dense, int8 or fp8
    scales,  # [N]
    out,  # [M, N], dense
    M,
    N,
    K,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Grid: tiles of columns, tiles of rows. WIDE multiplies in fp32, for Triton's interpreter."""
    column = tl.program_id(0) * STEP + tl.arange(0, STEP)
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)
    depth = tl.arange(0, DEPTH)
    total = tl.zeros((TILE, STEP), tl.float32)
    for start in range(0, K, DEPTH):
        place = start + depth
        seen = (row[:, None] < M) & (place[None, :] < K)
        some = tl.load(x + row[:, None].to(tl.int64) * K + place[None, :], seen, 0.0)
        kept = (column[None, :] < N) & (place[:, None] < K)
        bits = tl.load(values + column[None, :].to(tl.int64) * K + place[:, None], kept)
        matrix = tl.where(kept, bits.to(tl.float32), 0.0).to(some.dtype)
        if WIDE:
            total += tl.dot(some.to(tl.float32), matrix.to(tl.float32), input_precision="ieee")
        else:
            total = tl.dot(some, matrix, total, input_precision="ieee")
    scale = tl.load(scales + column, column < N, 0.0).to(tl.float32)
    tl.store(
        out + row[:, None].to(tl.int64) * N + column[None, :],
        (total * scale[None, :]).to(out.dtype.element_ty),
        (row[:, None] < M) & (column[None, :] < N),
    )


def product(rows: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """rows `[M, K]`, values `[N, K]` in 8 bits, scales `[N]` -> `[M, N]` in the rows' type."""
    rows = rows.contiguous()
    count, depth, width = len(rows), values.shape[1], len(values)
    out = rows.new_empty(count, width)
    grid = (triton.cdiv(width, _STEP), triton.cdiv(count, _TILE))
    wide = rows.device.type == "cpu"
    multiply[grid](rows, values, scales, out, count, width, depth, TILE=_TILE, STEP=_STEP, DEPTH=_DEPTH, WIDE=wide)
    return out
