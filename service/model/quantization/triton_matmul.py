"""A Triton kernel: activations times 8-bit matrices. `layers.py` calls it.

A program has TILE rows and STEP columns of the result. It walks over K and widens the 8-bit numbers in registers, so
that memory is read once and in 8 bits. Sums are fp32, in one order for any number of rows.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

#: rows, columns and depth of a tile; rows where an expert has many
_TILE, _STEP, _DEPTH = 16, 32, 128
_MANY = 64


@triton.jit
def multiply(
    x,  # [M, K], dense
    values,  # [E, N, K], dense, int8 or fp8
    scales,  # [E, N, K / GROUP], dense
    out,  # [M, N], dense
    matrices,  # [tiles of rows]: the index of the matrix
    firsts,  # [tiles of rows]: the first row
    lasts,  # [tiles of rows]: the end of the matrix's rows
    M,
    N,
    K,
    GROUP,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUPS: tl.constexpr,
    EXPERTS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Grid: tiles of columns, tiles of rows. GROUPS: a row has several scales, each for GROUP columns.

    EXPERTS: there are several matrices; else the three tables are not read. WIDE multiplies in fp32, for Triton's
    interpreter.
    """
    tile = tl.program_id(1)
    column = tl.program_id(0) * STEP + tl.arange(0, STEP)
    line = column.to(tl.int64)
    row = tile * TILE + tl.arange(0, TILE)
    last = M
    if EXPERTS:
        line += tl.load(matrices + tile).to(tl.int64) * N
        row = tl.load(firsts + tile) + tl.arange(0, TILE)
        last = tl.load(lasts + tile)
    depth = tl.arange(0, DEPTH)
    total = tl.zeros((TILE, STEP), tl.float32)
    for start in range(0, K, DEPTH):
        k = start + depth
        seen = (row[:, None] < last) & (k[None, :] < K)
        inputs = tl.load(x + row[:, None].to(tl.int64) * K + k[None, :], seen, 0.0)
        inside = (column[None, :] < N) & (k[:, None] < K)
        bits = tl.load(values + line[None, :] * K + k[:, None], inside)
        wide = tl.where(inside, bits.to(tl.float32), 0.0).to(inputs.dtype)
        if WIDE:
            part = tl.dot(inputs.to(tl.float32), wide.to(tl.float32), input_precision="ieee")
        else:
            part = tl.dot(inputs, wide, input_precision="ieee")
        if GROUPS:
            part *= tl.load(scales + line * (K // GROUP) + start // GROUP, column < N, 0.0).to(tl.float32)[None, :]
        total += part
    if not GROUPS:
        total *= tl.load(scales + line, column < N, 0.0).to(tl.float32)[None, :]
    tl.store(
        out + row[:, None].to(tl.int64) * N + column[None, :],
        total.to(out.dtype.element_ty),
        (row[:, None] < last) & (column[None, :] < N),
    )


class _Tiles(NamedTuple):
    """Tables of the tiles of rows: the index of the matrix, the first row, and the end of the matrix's rows."""

    matrices: Tensor
    firsts: Tensor
    lasts: Tensor


def product(rows: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """rows `[M, K]`, values `[N, K]` in 8 bits, scales `[N, G]` -> `[M, N]` in the rows' type."""
    out = rows.new_empty(len(rows), len(values))
    _launch(rows, values, scales, out, None, _TILE)
    return out


def grouped_product(rows: Tensor, values: Tensor, scales: Tensor, ends: Tensor, dtype: torch.dtype) -> Tensor:
    """rows `[P, K]`, sorted by matrix, values `[E, N, K]` in 8 bits, scales `[E, N, G]`, ends `[E]` -> `[P, N]`.

    The rows of each tile are computed on the device, so that the host does not wait for it.
    """
    out = rows.new_empty(len(rows), values.shape[1], dtype=dtype)
    tile = _TILE if len(rows) <= _TILE * len(ends) else _MANY
    _launch(rows, values, scales, out, _tiles(ends, len(rows), tile), tile)
    return out


def _launch(rows: Tensor, values: Tensor, scales: Tensor, out: Tensor, tiles: _Tiles | None, tile: int) -> None:
    rows = rows.contiguous()
    (count, depth), width, groups = rows.shape, values.shape[-2], scales.shape[-1]
    group = depth // groups
    step = _DEPTH if groups == 1 else gcd(group, _DEPTH)
    num_tiles = triton.cdiv(count, tile) if tiles is None else len(tiles.matrices)
    grid = (triton.cdiv(width, _STEP), num_tiles)
    arguments = _Tiles(rows, rows, rows) if tiles is None else tiles
    multiply[grid](
        rows, values, scales, out, *arguments, count, width, depth, group, TILE=tile, STEP=_STEP, DEPTH=step,
        GROUPS=groups > 1, EXPERTS=tiles is not None, WIDE=rows.device.type == "cpu",
    )  # fmt: skip


def _tiles(ends: Tensor, rows: int, tile: int) -> _Tiles:
    """Enough tiles for any division of the rows. Spare tiles have no rows."""
    starts = F.pad(ends[:-1], (1, 0))
    stops = ((ends - starts + tile - 1) // tile).cumsum(0)
    tile_index = torch.arange(min(rows, len(ends)) + rows // tile, device=ends.device)
    matrix = torch.searchsorted(stops, tile_index, right=True).clamp_(max=len(ends) - 1)
    first = starts[matrix] + (tile_index - F.pad(stops[:-1], (1, 0))[matrix]) * tile
    return _Tiles(matrix, first, ends[matrix])
