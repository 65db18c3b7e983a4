"""Triton kernels of a decoder layer: residual sum with norm, norms of queries and keys with rotation, SwiGLU.

`layers.py` calls them. Their definitions are there and in `layer_ops.py`. Numbers are computed in fp32 and rounded
once, except the residual sum, which is rounded before its norm. Tensors are dense. T tokens, H hidden, D the size of a
head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from service.model.layer_ops import HeadNorms, Heads, KvTargets, Rotation

#: the largest number in 8 bits, and the largest float16
_LARGEST, _LARGEST_SCALE = tl.constexpr(127.0), tl.constexpr(65504.0)
#: 1.5 * 2^23: added and subtracted, it rounds a small number to the nearest whole number, ties to even
_ROUNDING = tl.constexpr(12582912.0)
#: numbers of a program of `silu_times`, and heads of a program of `rotate_heads`
_STEP, _HEADS = 1024, 16


@triton.jit
def sum_norm(
    x,  # [T, H], becomes the sum
    change,  # [T, H]
    weight,  # [H]
    out,  # [T, H]
    H,
    EPS: tl.constexpr,
    H_PAD: tl.constexpr,
):
    """Grid: tokens."""
    column = tl.arange(0, H_PAD)
    inside = column < H
    at = tl.program_id(0).to(tl.int64) * H + column
    dtype = x.dtype.element_ty
    factor = tl.load(weight + column, inside, 0.0).to(tl.float32)  # early: it is there when the norm is known
    total = (tl.load(x + at, inside, 0.0).to(tl.float32) + tl.load(change + at, inside, 0.0).to(tl.float32)).to(dtype)
    tl.store(x + at, total, inside)
    wide = total.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / H + EPS)
    tl.store(out + at, (wide * scale * factor).to(dtype), inside)


@triton.jit
def rotate_heads(
    qkv,  # [T, HEADS + 2 KV_HEADS, D], queries and keys are overwritten
    q_weight,  # [D], not read without NORM
    k_weight,  # [D]
    cos,  # [T, WIDTH]
    sin,  # [T, WIDTH], the first half negated
    keys,  # [pages, L, KV_HEADS, D]
    values,
    targets,  # [T / L], the page that a row's keys and values go to, -1: none
    key_scales,  # [pages, L, KV_HEADS] of pages in 8 bits, or None
    value_scales,
    EPS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF_PAD: tl.constexpr,
    REST_PAD: tl.constexpr,
    TILE: tl.constexpr,
    L: tl.constexpr,
    NORM: tl.constexpr,
    WRITE: tl.constexpr,
):
    """Grid: tokens, tiles of heads; with WRITE the heads of values, too.

    A head is two halves that are rotated, and perhaps a rest. A thread has the same numbers of both halves, so that a
    head can be overwritten. With pages in 8 bits, keys and values are rounded as by `round_heads` in
    `attention/pages.py`, also where none is written.
    """
    HALF: tl.constexpr = WIDTH // 2
    REST: tl.constexpr = D - WIDTH
    token = tl.program_id(0)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)
    rotated = head < HEADS + KV_HEADS
    half = tl.arange(0, HALF_PAD)
    rest = tl.arange(0, REST_PAD)
    in_half = half < HALF
    in_rest = rest < REST
    dtype = qkv.dtype.element_ty

    start = qkv + token.to(tl.int64) * (HEADS + 2 * KV_HEADS) * D
    there = head < HEADS + 2 * KV_HEADS
    low_at = head[:, None] * D + half[None, :]
    rest_at = head[:, None] * D + WIDTH + rest[None, :]
    halves = there[:, None] & in_half[None, :]
    rests = there[:, None] & in_rest[None, :]
    low = tl.load(start + low_at, halves, 0.0).to(tl.float32)
    high = tl.load(start + low_at + HALF, halves, 0.0).to(tl.float32)
    last = tl.load(start + rest_at, rests, 0.0).to(tl.float32)

    low_normed = low
    high_normed = high
    last_normed = last
    if NORM:
        squares = tl.sum(low * low + high * high, 1)
        if REST:
            squares += tl.sum(last * last, 1)
        scale = (1.0 / tl.sqrt(squares / D + EPS))[:, None]
        query = (head < HEADS)[:, None]
        low_normed = low * scale * _weights(q_weight, k_weight, half, in_half, query)
        high_normed = high * scale * _weights(q_weight, k_weight, half + HALF, in_half, query)
        if REST:
            last_normed = last * scale * _weights(q_weight, k_weight, rest + WIDTH, in_rest, query)
    angle = token.to(tl.int64) * WIDTH + half
    low_cos = tl.load(cos + angle, in_half, 0.0).to(tl.float32)[None, :]
    high_cos = tl.load(cos + angle + HALF, in_half, 0.0).to(tl.float32)[None, :]
    low_sin = tl.load(sin + angle, in_half, 0.0).to(tl.float32)[None, :]
    high_sin = tl.load(sin + angle + HALF, in_half, 0.0).to(tl.float32)[None, :]
    new_low = (low_normed * low_cos + high_normed * low_sin).to(dtype)
    new_high = (high_normed * high_cos + low_normed * high_sin).to(dtype)
    new_last = last_normed.to(dtype)
    changed = rotated
    if key_scales is not None:
        rounded = (head >= HEADS)[:, None]
        wide_low = tl.where(rotated[:, None], new_low.to(tl.float32), low)
        wide_high = tl.where(rotated[:, None], new_high.to(tl.float32), high)
        wide_last = tl.where(rotated[:, None], new_last.to(tl.float32), last)
        peak = tl.maximum(_peak(wide_low), tl.maximum(_peak(wide_high), _peak(wide_last)))
        finite = tl.minimum(tl.div_rn(peak, _LARGEST), _LARGEST_SCALE)
        scales = tl.where(peak < float("inf"), finite, peak).to(tl.float16)
        step = scales.to(tl.float32)[:, None]
        low_numbers = _rounded(wide_low, step)
        high_numbers = _rounded(wide_high, step)
        last_numbers = _rounded(wide_last, step)
        new_low = tl.where(rounded, (low_numbers * step).to(dtype), new_low)
        new_high = tl.where(rounded, (high_numbers * step).to(dtype), new_high)
        new_last = tl.where(rounded, (last_numbers * step).to(dtype), new_last)
        changed = there
    tl.store(start + low_at, new_low, halves & changed[:, None])
    tl.store(start + low_at + HALF, new_high, halves & changed[:, None])
    if REST:
        tl.store(start + rest_at, new_last, rests & changed[:, None])

    if WRITE:
        page = tl.load(targets + token // L)
        if page >= 0:
            key = (head >= HEADS) & rotated
            value = (head >= HEADS + KV_HEADS) & there
            first_head = (page.to(tl.int64) * L + token % L) * KV_HEADS
            key_at = first_head * D + (head[:, None] - HEADS) * D
            value_at = key_at - KV_HEADS * D
            key_low, key_high, key_last = new_low, new_high, new_last
            value_low, value_high, value_last = low.to(dtype), high.to(dtype), last.to(dtype)
            if key_scales is not None:
                key_low, key_high, key_last = low_numbers, high_numbers, last_numbers
                value_low, value_high, value_last = low_numbers, high_numbers, last_numbers
                tl.store(key_scales + first_head + head - HEADS, scales, key)
                tl.store(value_scales + first_head + head - HEADS - KV_HEADS, scales, value)
            stored = keys.dtype.element_ty
            tl.store(keys + key_at + half[None, :], key_low.to(stored), halves & key[:, None])
            tl.store(keys + key_at + half[None, :] + HALF, key_high.to(stored), halves & key[:, None])
            tl.store(values + value_at + half[None, :], value_low.to(stored), halves & value[:, None])
            tl.store(values + value_at + half[None, :] + HALF, value_high.to(stored), halves & value[:, None])
            if REST:
                tl.store(keys + key_at + WIDTH + rest[None, :], key_last.to(stored), rests & key[:, None])
                tl.store(values + value_at + WIDTH + rest[None, :], value_last.to(stored), rests & value[:, None])


@triton.jit
def _peak(x):
    """The largest size of each row, `[TILE, columns]` -> `[TILE]`: infinite where a number is not finite."""
    return tl.max(tl.where(x == x, tl.abs(x), float("inf")), 1)


@triton.jit
def _rounded(x, step):
    """x `[TILE, columns]` in steps `[TILE, 1]`, as whole numbers of at most 127, ties to even. A step of 0: 0."""
    numbers = tl.div_rn(x, tl.where(step > 0.0, step, 1.0))
    return tl.minimum(tl.maximum(numbers, -_LARGEST), _LARGEST) + _ROUNDING - _ROUNDING


@triton.jit
def _weights(q_weight, k_weight, column, inside, query):
    """The weights of columns for each head, `[TILE, columns]`. `query` `[TILE, 1]`: whether a head is a query's."""
    of_query = tl.load(q_weight + column, inside, 0.0).to(tl.float32)
    of_key = tl.load(k_weight + column, inside, 0.0).to(tl.float32)
    return tl.where(query, of_query[None, :], of_key[None, :])


@triton.jit
def silu_times(
    gate_up,  # [T, 2 I]
    out,  # [T, I]
    I,  # noqa: E741
    STEP: tl.constexpr,
):
    """Grid: tokens, steps of columns."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * STEP + tl.arange(0, STEP)
    inside = column < I
    gate = tl.load(gate_up + token * 2 * I + column, inside, 0.0).to(tl.float32)
    up = tl.load(gate_up + token * 2 * I + I + column, inside, 0.0).to(tl.float32)
    tl.store(out + token * I + column, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), inside)


def add_norm(x: Tensor, change: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x, change `[..., H]` -> the norm of their sum. x becomes the sum."""
    width = x.shape[-1]
    padded = triton.next_power_of_2(width)
    out = torch.empty_like(x)
    sum_norm[x.numel() // width,](
        x, change.contiguous(), weight, out, width, EPS=eps, H_PAD=padded, num_warps=_warps(padded)
    )
    return out


def _warps(numbers: int) -> int:
    """Warps of a program. A warp has at least 256 numbers, so that no two threads read a number that one overwrites."""
    return max(1, min(8, numbers // 256))


def norm_and_rotate(
    qkv: Tensor, sizes: Heads, rotation: Rotation, pages: KvTargets | None
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv `[R, L, heads + 2 kv_heads, D]`, dense, of which the results are views: q, k and v.

    With `pages` keys and values of final blocks are written to them, too. For pages in 8 bits all keys and values are
    rounded.
    """
    rows, length, all_heads, size = qkv.shape
    width = rotation.cos.shape[-1]
    half_padded = triton.next_power_of_2(width // 2)
    keys, values, targets, key_scales, value_scales = pages or KvTargets(qkv, qkv, qkv)
    heads, kv_heads, norms = sizes
    q_weight, k_weight, eps = norms or HeadNorms(qkv, qkv, 0.0)
    used = all_heads if pages is not None else heads + kv_heads
    rotate_heads[rows * length, triton.cdiv(used, _HEADS)](
        qkv, q_weight, k_weight, rotation.cos, rotation.sin, keys, values, targets, key_scales, value_scales,
        EPS=eps, HEADS=heads, KV_HEADS=kv_heads, D=size, WIDTH=width,
        HALF_PAD=half_padded, REST_PAD=triton.next_power_of_2(max(1, size - width)),
        TILE=_HEADS, L=length, NORM=norms is not None, WRITE=pages is not None,
        num_warps=_warps(_HEADS * half_padded),
    )  # fmt: skip
    q, k, v = qkv.split_with_sizes((heads, kv_heads, kv_heads), 2)
    return q, k, v


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """`[..., 2 I]` -> silu(gate) * up, `[..., I]`."""
    width = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    silu_times[out.numel() // width, triton.cdiv(width, _STEP)](gate_up.contiguous(), out, width, STEP=_STEP)
    return out
