"""Triton kernels: activations times 8-bit matrices. `layers.py` calls them.

A program has STEP rows of a matrix and TILE rows of activations. It walks over K and widens the 8-bit numbers in
registers, so that memory is read once and in 8 bits: programs with the same rows of the matrix start together. If there
are too few programs for a device, several share a result. Each sums a part of K; the last one adds the parts, in order.
With 8-bit activations one kernel quantizes the rows, and the product's sums are whole numbers, scaled at the end.
"""

from functools import cache
from math import gcd
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

#: the largest number of int8 activations, and the least peak of a row that is not all zeros
_LARGEST, _SMALLEST_PEAK = tl.constexpr(127.0), tl.constexpr(1e-30)
#: 1.5 * 2^23: added and subtracted, it rounds a small number to the nearest whole number, ties to even
_ROUNDING = tl.constexpr(12582912.0)


@triton.jit
def quantize_rows(
    x,  # [M, K], dense
    values,  # [M, K] int8
    scales,  # [M] float32
    K,
    K_PAD: tl.constexpr,
):
    """Grid: rows. `layers.quantize_activations` is the definition."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, K_PAD)
    inside = column < K
    numbers = tl.load(x + row * K + column, inside, 0.0).to(tl.float32)
    peak = tl.maximum(tl.max(tl.abs(numbers), 0), _SMALLEST_PEAK)
    factor = tl.div_rn(1.0, peak) * _LARGEST  # so torch divides a number by a tensor
    whole = numbers * factor + _ROUNDING - _ROUNDING
    tl.store(values + row * K + column, whole.to(tl.int8), inside)
    tl.store(scales + row, tl.div_rn(peak, _LARGEST))


@triton.jit(do_not_specialize=["M"])  # one compilation for all numbers of rows
def multiply(
    x,  # [M, K], dense, int8 if WHOLE
    x_scales,  # [M] float32, read if WHOLE
    values,  # [E, N, K], dense, int8 or fp8
    scales,  # [E, N, K / GROUP], dense
    out,  # [M, N], dense
    sums,  # [SPLITS, M, N], float32 or int32 as the sums; used if SPLITS > 1
    finished,  # int32, 0 for each tile of the result: the finished programs; used if SPLITS > 1
    ends,  # [E] int32: the end of each matrix's rows, read if EXPERTS
    M,
    N,
    K,
    GROUP,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    GROUPS: tl.constexpr,
    EXPERTS: tl.constexpr,
    EXPERTS_PAD: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Grid: tiles of activations, tiles of a matrix, parts of K.

    GROUPS: a row of a matrix has several scales, each for GROUP columns. EXPERTS: the number E of matrices, each for
    some of the rows, or 0 for one matrix. WHOLE: activations are int8, and sums are whole numbers. WIDE multiplies in
    fp32, for Triton's interpreter.
    """
    tile = tl.program_id(0)
    column = tl.program_id(1) * STEP + tl.arange(0, STEP)
    line = column.to(tl.int64)
    first, last, limit = tile * TILE, M, K
    if EXPERTS:
        matrix, first, last = _tile_of_experts(ends, tile, TILE, EXPERTS, EXPERTS_PAD)
        line += matrix.to(tl.int64) * N
        limit = tl.where(first < last, K, 0)
    row = first + tl.arange(0, TILE)
    length = tl.cdiv(tl.cdiv(K, DEPTH), SPLITS) * DEPTH
    begin = tl.program_id(2) * length
    depth = tl.arange(0, DEPTH)
    total = tl.zeros((STEP, TILE), tl.int32 if WHOLE else tl.float32)
    for start in range(begin, tl.minimum(begin + length, limit), DEPTH):
        k = start + depth
        inputs = tl.load(x + row[None, :].to(tl.int64) * K + k[:, None], (row[None, :] < last) & (k[:, None] < K), 0)
        bits = tl.load(values + line[:, None] * K + k[None, :], (column[:, None] < N) & (k[None, :] < K), 0.0)
        if WHOLE and not WIDE:
            total = tl.dot(bits, inputs, total, out_dtype=tl.int32)
        else:
            if WIDE:
                part = tl.dot(bits.to(tl.float32), inputs.to(tl.float32), input_precision="ieee").to(total.dtype)
            else:
                part = tl.dot(bits.to(inputs.dtype), inputs, input_precision="ieee")
            if GROUPS:
                scale = tl.load(scales + line * (K // GROUP) + start // GROUP, column < N, 0.0)
                part *= scale.to(tl.float32)[:, None]
            total += part

    cell = row[None, :].to(tl.int64) * N + column[:, None]
    inside = (row[None, :] < last) & (column[:, None] < N)
    size = tl.cast(M, tl.int64) * N
    if SPLITS > 1:
        counter = finished + tile * tl.num_programs(1) + tl.program_id(1)
        tl.store(sums + tl.program_id(2) * size + cell, total, inside)
        tl.debug_barrier()
        if tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1:
            tl.debug_barrier()
            tl.store(counter, 0)
            total = tl.load(sums + cell, inside, 0)
            for split in range(1, SPLITS):
                total += tl.load(sums + split * size + cell, inside, 0)
            _finish(total, x_scales, scales + line, out + cell, row, column, last, N, inside, GROUPS, WHOLE)
    else:
        _finish(total, x_scales, scales + line, out + cell, row, column, last, N, inside, GROUPS, WHOLE)


@triton.jit
def _tile_of_experts(ends, tile, TILE: tl.constexpr, EXPERTS: tl.constexpr, EXPERTS_PAD: tl.constexpr):
    """The matrix of a tile, its first row, and the end of the matrix's rows, which is 0 for a tile without rows.

    The grid has enough tiles for any division of the rows: the host does not know the division.
    """
    expert = tl.arange(0, EXPERTS_PAD)
    inside = expert < EXPERTS
    stop = tl.load(ends + expert, inside, 0)
    start = tl.load(ends + expert - 1, inside & (expert > 0), 0)
    tiles = tl.where(inside, tl.cdiv(stop - start, TILE), 0)
    last_tile = tl.cumsum(tiles, 0)
    matrix = tl.sum((inside & (last_tile <= tile)).to(tl.int32), 0)
    selected = expert == matrix
    before = tl.sum(tl.where(selected, last_tile - tiles, 0), 0)
    first = tl.sum(tl.where(selected, start, 0), 0) + (tile - before) * TILE
    return tl.minimum(matrix, EXPERTS - 1), first, tl.sum(tl.where(selected & inside, stop, 0), 0)


@triton.jit
def _finish(
    total, x_scales, scales, out, row, column, last, N, inside, GROUPS: tl.constexpr, WHOLE: tl.constexpr
):  # fmt: skip
    """Scales sums and stores them."""
    numbers = total.to(tl.float32)
    if WHOLE:
        numbers *= tl.load(x_scales + row, row < last, 0.0)[None, :]
    if not GROUPS:
        numbers *= tl.load(scales, column < N, 0.0).to(tl.float32)[:, None]
    tl.store(out, numbers.to(out.dtype.element_ty), inside)


# --- tiles -----------------------------------------------------------------------------------------


class Tiling(NamedTuple):
    """The sizes of a program: rows of activations, rows of a matrix, numbers along K; warps, and loads under way."""

    tile: int
    step: int
    depth: int
    warps: int
    stages: int


#: By the most rows of activations. Larger tiles read activations and matrices less often from the cache.
_TILINGS = (
    Tiling(16, 64, 128, 4, 4),
    Tiling(32, 64, 128, 4, 4),
    Tiling(64, 128, 128, 8, 3),
    Tiling(128, 128, 64, 8, 3),
)
#: the sizes for fp32 activations, for which there are no tensor cores
_WIDE_TILING = Tiling(16, 32, 64, 4, 2)
#: Programs that keep a device busy: two for each multiprocessor of an H100. Fewer are divided along K.
_PROGRAMS = 256
#: the fewest numbers along K of a program, and the share of the matrix's bytes that partial sums may take
_LEAST_DEPTH, _MOST_SUMS = 512, 0.25


def tiling_for(rows: float, itemsize: int = 2) -> Tiling:
    """The sizes for a number of rows of activations that share a matrix. `itemsize`: the bytes of an activation."""
    if itemsize > 2:
        return _WIDE_TILING
    return next((tiling for tiling in _TILINGS if rows <= tiling.tile), _TILINGS[-1])


def num_splits(rows: int, depth: int, programs: int) -> int:
    """The parts of K, a power of two. `rows`: the rows of all tiles. `programs`: the programs without a division.

    Partial sums are written and read once, 8 bytes in all.
    """
    splits, most = 1, min(depth // _LEAST_DEPTH, int(_MOST_SUMS * depth / (8 * rows)))
    while programs * splits < _PROGRAMS and 2 * splits <= most:
        splits *= 2
    return splits


@cache
def _counters(device: torch.device) -> Tensor:
    """The finished programs of each tile of a result. A kernel leaves zeros, and kernels run one after another."""
    return torch.zeros(_PROGRAMS, dtype=torch.int32, device=device)


def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """rows `[M, K]` -> the rows in int8, and the scale of each, `[M]` in fp32."""
    count, depth = rows.shape
    values = torch.empty(count, depth, dtype=torch.int8, device=rows.device)
    scales = torch.empty(count, dtype=torch.float32, device=rows.device)
    quantize_rows[count,](
        rows.contiguous(), values, scales, depth, K_PAD=triton.next_power_of_2(depth), num_warps=8,
        enable_fp_fusion=False,
    )  # fmt: skip
    return values, scales


def product(rows: Tensor, values: Tensor, scales: Tensor, ends: Tensor | None = None, *, whole: bool) -> Tensor:
    """rows `[M, K]`, values `[N, K]` in 8 bits, scales `[N, G]` -> `[M, N]` in the rows' type.

    With `ends` `[E]` int32 there are E matrices: values `[E, N, K]`, scales `[E, N, G]`. The rows are sorted by matrix.
    `whole`: activations are quantized, too.
    """
    (count, depth), width, groups = rows.shape, values.shape[-2], scales.shape[-1]
    experts = 0 if ends is None else len(ends)
    tiling = tiling_for(count / max(1, experts), 1 if whole else rows.element_size())
    tiles, steps, splits = triton.cdiv(count, tiling.tile), triton.cdiv(width, tiling.step), 1
    if experts:
        tiles = min(count, experts) + count // tiling.tile
    else:
        splits = num_splits(tiles * tiling.tile, depth, tiles * steps)
    out = rows.new_empty(count, width)
    numbers, row_scales = quantize(rows) if whole else (rows.contiguous(), rows)
    sums, counters = out, out
    if splits > 1:
        sums = torch.empty(splits, count, width, dtype=torch.int32 if whole else torch.float32, device=rows.device)
        counters = _counters(rows.device)
    multiply[tiles, steps, splits](
        numbers, row_scales, values, scales, out, sums, counters, rows if ends is None else ends, count, width, depth,
        depth // groups, TILE=tiling.tile, STEP=tiling.step, SPLITS=splits, GROUPS=groups > 1,
        DEPTH=tiling.depth if groups == 1 else gcd(depth // groups, tiling.depth),
        EXPERTS=experts, EXPERTS_PAD=triton.next_power_of_2(max(1, experts)), WHOLE=whole,
        WIDE=rows.device.type == "cpu", num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out
