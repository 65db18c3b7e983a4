"""Triton kernels: activations times matrices, of 8 bits or 16. `layers.py` calls them.

A program has STEP rows of a matrix and TILE rows of activations. It walks over all of K and keeps its sums in one
accumulator. So an element is summed in the order of K, whatever the tiles: its bits do not depend on the number of
rows. On Hopper tiles have at least 64 rows of the left operand, so every tile takes the same instruction (`wgmma` of
64 x n). Memory is read once and in 8 bits: programs with the same rows of the matrix start together.

The left operand is the matrix, so 16 rows of activations are no padded tile. Both operands have one type: with 8-bit
matrices one kernel quantizes the rows first. The product is then one of 8-bit tensor cores, scaled at the end. If a row
has several scales, each step's product is scaled before the next step. Steps are then equally deep in all tiles.

Sums of int8 products are exact. Those of e4m3 products stay in the tensor cores, as `use_fast_accum` of
`torch._scaled_mm` has it: Hopper keeps some 14 bits of them (dev/lab/gpu.md).
"""

from math import ceil, gcd, prod
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

#: the least peak of a row that is not all zeros
_SMALLEST_PEAK = tl.constexpr(1e-30)
#: 1.5 * 2^23: added and subtracted, it rounds a small number to the nearest whole number, ties to even
_ROUNDING = tl.constexpr(12582912.0)


@triton.jit
def quantize_rows(
    x,  # [M, K], dense
    values,  # [M, K] int8 or e4m3
    scales,  # [M] float32
    K,
    LARGEST: tl.constexpr,
    K_PAD: tl.constexpr,
):
    """Grid: rows. LARGEST: the largest number in 8 bits. `layers.quantize_activations` is the definition."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, K_PAD)
    inside = column < K
    numbers = tl.load(x + row * K + column, inside, 0.0).to(tl.float32)
    peak = tl.maximum(tl.max(tl.abs(numbers), 0), _SMALLEST_PEAK)
    numbers *= tl.div_rn(1.0, peak) * LARGEST  # so torch divides a number by a tensor
    if values.dtype.element_ty == tl.int8:
        numbers = numbers + _ROUNDING - _ROUNDING
    tl.store(values + row * K + column, numbers.to(values.dtype.element_ty), inside)
    tl.store(scales + row, tl.div_rn(peak, LARGEST))


@triton.jit(do_not_specialize=["M"])  # one compilation for all numbers of rows
def multiply(
    x,  # [M, K], dense
    x_scales,  # [M] float32, or None
    values,  # [E, N, K], dense, of x's type
    scales,  # [E, N, K / GROUP], dense, or None
    out,  # [M, N], dense
    ends,  # [E] int32: the end of each matrix's rows, read if EXPERTS
    M,
    N,
    K,
    GROUP,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
    SCALED: tl.constexpr,
    EXPERTS: tl.constexpr,
    EXPERTS_PAD: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Grid: tiles of activations, tiles of a matrix.

    EVEN: K is a multiple of DEPTH. SCALED: each step's product is scaled before it is added; so a row of a matrix may
    have several scales, each for GROUP columns, a multiple of DEPTH. EXPERTS: the number E of matrices, each for some
    of the rows, or 0 for one matrix. WIDE multiplies and sums in float64, for Triton's interpreter.
    """
    tile = tl.program_id(0)
    column = tl.program_id(1) * STEP + tl.arange(0, STEP)
    line = tl.minimum(column, N - 1).to(tl.int64)
    first, last, limit = tile * TILE, M, K
    if EXPERTS:
        matrix, first, last = _tile_of_experts(ends, tile, TILE, EXPERTS, EXPERTS_PAD)
        line += matrix.to(tl.int64) * N
        limit = tl.where(first < last, K, 0)
    row = first + tl.arange(0, TILE)
    present, depth = (row < last)[None, :], tl.arange(0, DEPTH)
    inputs_at = x + tl.minimum(row, M - 1)[None, :].to(tl.int64) * K + depth[:, None]
    bits_at = values + line[:, None] * K + depth[None, :]
    real: tl.constexpr = tl.float64 if WIDE else tl.float32
    exact: tl.constexpr = tl.int32 if x.dtype.element_ty == tl.int8 else real
    total = tl.zeros((STEP, TILE), exact)
    for start in range(0, limit, DEPTH):
        if EVEN:
            inputs = tl.load(inputs_at + start)
            bits = tl.load(bits_at + start)
        else:
            within = start + depth < K
            inputs = tl.load(inputs_at + start, present & within[:, None], 0.0)
            bits = tl.load(bits_at + start, within[None, :], 0.0)
        if SCALED:
            scale = tl.load(scales + line * (K // GROUP) + start // GROUP).to(tl.float32)
            total += _dot(bits, inputs, tl.zeros((STEP, TILE), exact), WIDE) * scale[:, None]
        else:
            total = _dot(bits, inputs, total, WIDE)

    numbers = total.to(tl.float32)
    if x_scales is not None:
        numbers *= tl.load(x_scales + row, row < last, 0.0)[None, :]
    if scales is not None and not SCALED:
        numbers *= tl.load(scales + line).to(tl.float32)[:, None]
    inside = (row[None, :] < last) & (column[:, None] < N)
    tl.store(out + row[None, :].to(tl.int64) * N + column[:, None], numbers.to(out.dtype.element_ty), inside)


@triton.jit
def _dot(left, right, total, WIDE: tl.constexpr):
    """The product of two tiles on top of a total."""
    if WIDE:  # by float32: the interpreter cannot widen the smallest e4m3 at once
        wide_left, wide_right = left.to(tl.float32).to(tl.float64), right.to(tl.float32).to(tl.float64)
        total += tl.dot(wide_left, wide_right, out_dtype=tl.float64).to(total.dtype)
    else:
        total = tl.dot(left, right, total, input_precision="ieee", out_dtype=total.dtype)
    return total


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


# --- tiles -----------------------------------------------------------------------------------------


class Tiling(NamedTuple):
    """The sizes of a program: rows of activations, rows of a matrix, numbers along K; warps, and loads under way.

    `together`: the programs of a multiprocessor that run side by side. `cost`: the time of such a wave for some K, by
    fits to an H100's times. Its unit is the same within a list.
    """

    tile: int
    step: int
    depth: int
    warps: int
    stages: int
    together: int
    cost: float


#: By the type of activations and matrices: none needs a register in memory on compute capability 9.0.
_E4M3 = (
    Tiling(16, 64, 256, 4, 4, 1, 0.069),
    Tiling(32, 64, 256, 4, 3, 1, 0.122),
    Tiling(64, 64, 256, 4, 3, 2, 0.132),
    Tiling(128, 128, 128, 8, 4, 1, 0.251),
    Tiling(256, 128, 128, 8, 4, 1, 0.37),
)
_INT8 = (
    Tiling(16, 64, 256, 4, 4, 1, 0.095),
    Tiling(32, 64, 256, 4, 3, 1, 0.172),
    Tiling(64, 64, 256, 4, 3, 1, 0.188),
    Tiling(64, 128, 128, 4, 4, 2, 0.415),
    Tiling(128, 128, 128, 8, 3, 2, 0.596),
)
_WIDE = (
    Tiling(16, 64, 256, 4, 4, 1, 0.144),
    Tiling(32, 64, 128, 4, 4, 1, 0.191),
    Tiling(64, 64, 128, 4, 3, 2, 0.26),
    Tiling(128, 128, 64, 8, 4, 1, 0.273),
    Tiling(256, 128, 64, 8, 3, 1, 0.42),
)
#: of products that are scaled step by step: all are equally deep. Their costs are guesses, not measured
_SCALED = (
    Tiling(16, 64, 128, 4, 6, 1, 0.15),
    Tiling(32, 64, 128, 4, 4, 1, 0.19),
    Tiling(64, 64, 128, 4, 3, 1, 0.25),
    Tiling(128, 64, 128, 4, 3, 1, 0.39),
)
#: for fp32 activations, for which there are no tensor cores
_FLOAT32 = (Tiling(16, 32, 64, 4, 2, 1, 1.0),)


def tilings_of(numbers: Tensor, groups: int) -> tuple[Tiling, ...]:
    """The possible sizes of a product of activations `[M, K]`, the smallest first."""
    if numbers.element_size() > 2:
        return _FLOAT32
    if groups > 1:
        return _SCALED
    return {torch.int8: _INT8, torch.float8_e4m3fn: _E4M3}.get(numbers.dtype, _WIDE)


class _Device(NamedTuple):
    """The multiprocessors of a device, and the shared memory of a program in bytes."""

    processors: int
    shared_bytes: int


def _device(device: torch.device) -> _Device:
    """An H100 stands for Triton's interpreter."""
    if device.type != "cuda":
        return _Device(132, 227 * 1024)
    properties = torch.cuda.get_device_properties(device)
    shared_bytes = getattr(properties, "shared_memory_per_block_optin", 99 * 1024)
    return _Device(properties.multi_processor_count, shared_bytes)


def _grid(tiling: Tiling, count: int, width: int, experts: int) -> tuple[int, int]:
    """Tiles of `count` rows, for experts the most that a division of the rows can need; tiles of a matrix."""
    tiles = min(count, experts) + count // tiling.tile if experts else triton.cdiv(count, tiling.tile)
    return tiles, triton.cdiv(width, tiling.step)


# --- launches --------------------------------------------------------------------------------------


def quantize(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """rows `[M, K]` -> the rows in int8 or e4m3, and the scale of each, `[M]` in fp32."""
    count, depth = rows.shape
    values = torch.empty(count, depth, dtype=dtype, device=rows.device)
    scales = torch.empty(count, dtype=torch.float32, device=rows.device)
    quantize_rows[count,](
        rows.contiguous(), values, scales, depth, LARGEST=127.0 if dtype == torch.int8 else torch.finfo(dtype).max,
        K_PAD=triton.next_power_of_2(depth), num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    return values, scales


def product(rows: Tensor, values: Tensor, scales: Tensor | None = None, ends: Tensor | None = None) -> Tensor:
    """rows `[M, K]`, values `[N, K]` in 8 bits or the rows' type, scales `[N, G]` -> `[M, N]` in the rows' type.

    With `ends` `[E]` int32 there are E matrices: values `[E, N, K]`, scales `[E, N, G]`. The rows are sorted by matrix.
    With scales, the rows are quantized, too, to the type of the values.
    """
    (count, depth), width = rows.shape, values.shape[-2]
    groups, experts = 1 if scales is None else scales.shape[-1], 0 if ends is None else len(ends)
    numbers, row_scales = (rows.contiguous(), None) if scales is None else quantize(rows, values.dtype)
    device = _device(rows.device)

    def cost(tiling: Tiling) -> float:
        programs = prod(_grid(tiling, count, width, experts))
        return ceil(programs / (device.processors * tiling.together)) * tiling.cost

    tiling = min(tilings_of(numbers, groups), key=cost)
    step_depth = tiling.depth if groups == 1 else gcd(depth // groups, tiling.depth)
    stage_bytes = step_depth * (tiling.tile * numbers.element_size() + tiling.step * values.element_size())
    out = rows.new_empty(count, width)
    multiply[_grid(tiling, count, width, experts)](
        numbers, row_scales, values, scales, out, rows if ends is None else ends, count, width, depth, depth // groups,
        TILE=tiling.tile, STEP=tiling.step, DEPTH=step_depth, EVEN=depth % step_depth == 0,
        SCALED=groups > 1, EXPERTS=experts, EXPERTS_PAD=triton.next_power_of_2(max(1, experts)),
        WIDE=rows.device.type == "cpu", num_warps=tiling.warps,
        num_stages=max(1, min(tiling.stages, device.shared_bytes // stage_bytes)),
    )  # fmt: skip
    return out
