"""Triton kernels of paged attention, the only module that needs Triton. `triton.py` launches them.

A program of `attend` has some queries of one unit and one key head: the unit's tokens, each with the query heads that
share the key head. It walks over its share of the pages before the unit, read where they lie, then over the unit's own
keys, and keeps a running maximum and sum (online softmax, arXiv 2205.14135). A long prefix is split among several
programs. The last of them weighs their results by the log-sum-exp, in order (flash decoding). Nothing is copied, no
mask is stored.

Tokens are numbered through the forward. A page has L tokens of KV_HEADS heads of D numbers. SCALE is the scores' scale
times log2(e). ACC is the type of sums. WIDE multiplies in ACC, for Triton's interpreter, which cannot multiply
bfloat16; the products are the same. With CAUSAL a token sees its row only up to itself.
"""

import triton
import triton.language as tl

#: the score of a key that is not seen: finite, so that nothing is ever infinity less infinity
HIDDEN = tl.constexpr(-1.0e30)


@triton.jit
def _fold(query, key, value, seen, peak, total, result, SCALE: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr):
    """One tile of keys `[KEYS, D]` into the running maximum, sum and result of the queries `[TILE, D]`."""
    if WIDE:
        scores = tl.dot(query.to(ACC), tl.trans(key).to(ACC), input_precision="ieee", out_dtype=ACC)
    else:
        scores = tl.dot(query, tl.trans(key), input_precision="ieee", out_dtype=ACC)
    scores = tl.where(seen, scores * SCALE, HIDDEN)
    higher = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0).to(ACC)
    shrink = tl.exp2(peak - higher)
    total = total * shrink + tl.sum(weights, 1)
    rounded = weights.to(value.dtype)
    if WIDE:
        part = tl.dot(rounded.to(ACC), value.to(ACC), input_precision="ieee", out_dtype=ACC)
    else:
        part = tl.dot(rounded, value, input_precision="ieee", out_dtype=ACC)
    return higher, total, result * shrink[:, None] + part


@triton.jit
def _widened(numbers, scales):
    """Heads in 8 bits `[KEYS, D]` times their scales `[KEYS]`, exactly."""
    return numbers.to(tl.float32) * scales.to(tl.float32)[:, None]


@triton.jit
def attend(
    q,  # [T, heads, D], tokens are q_stride numbers apart
    k,  # [T, KV_HEADS, D]
    v,
    out,  # [T, heads, D], dense
    keys,  # [pages, L, KV_HEADS, D], dense
    values,
    key_scales,  # [pages, L, KV_HEADS] of pages in 8 bits, or None
    value_scales,
    items,  # [programs, 9], see tile_schedule.AttendItem
    pages,  # the units' page tables, concatenated
    indices,  # [R], block index of each row
    final_rows,  # [R], 1 for a final block
    part_out,  # [parts, KV_HEADS, TILE, D] in ACC
    part_lse,  # [parts, KV_HEADS, TILE], base 2
    finished,  # [parts, KV_HEADS] int32, 0: the finished programs of a divided tile, at its first part
    q_stride,
    k_stride,
    v_stride,
    L: tl.constexpr,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    TILE: tl.constexpr,
    KEYS: tl.constexpr,
    SCALE: tl.constexpr,
    ACC: tl.constexpr,
    WIDE: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Grid: items, key heads. An item without tokens is padding."""
    item = items + tl.program_id(0) * 9
    head = tl.program_id(1)
    count = tl.load(item + 1)
    if count > 0:
        first = tl.load(item)
        table = pages + tl.load(item + 2)
        start = tl.load(item + 3)
        stop = tl.load(item + 4)
        own_start = tl.load(item + 5)
        number = tl.load(item + 6)
        first_part = tl.load(item + 7)
        num_parts = tl.load(item + 8)
        own_stop = tl.where(number == num_parts - 1, tl.cdiv(first + count, L) * L, 0)

        lane = tl.arange(0, TILE)
        valid = lane // GROUP < count
        token = (first + lane // GROUP).to(tl.int64)
        query_head = head * GROUP + lane % GROUP
        d = tl.arange(0, D_PAD)
        inside = d < D
        q_at = (token * q_stride + query_head * D)[:, None] + d[None, :]
        query = tl.load(q + q_at, mask=valid[:, None] & inside[None, :], other=0.0)
        row = token // L
        index = tl.load(indices + row, mask=valid, other=0)

        peak = tl.full([TILE], HIDDEN, ACC)
        total = tl.full([TILE], 0.0, ACC)
        result = tl.full([TILE, D_PAD], 0.0, ACC)
        step = tl.arange(0, KEYS)

        for at in range(start, stop, KEYS):
            n = at + step
            there = n < stop
            page = tl.load(table + n // L, mask=there, other=0).to(tl.int64)
            at_head = (page * L + n % L) * KV_HEADS + head
            where = (at_head * D)[:, None] + d[None, :]
            which = there[:, None] & inside[None, :]
            key = tl.load(keys + where, mask=which, other=0)
            value = tl.load(values + where, mask=which, other=0)
            if key_scales is not None:  # the numbers that the rows' own keys would be
                key = _widened(key, tl.load(key_scales + at_head, mask=there, other=0.0)).to(query.dtype)
                value = _widened(value, tl.load(value_scales + at_head, mask=there, other=0.0)).to(query.dtype)
            peak, total, result = _fold(query, key, value, there[None, :], peak, total, result, SCALE, ACC, WIDE)

        for at in range(own_start, own_stop, KEYS):
            n = (at + step).to(tl.int64)
            there = n < own_stop
            key_row = n // L
            before = tl.load(indices + key_row, mask=there, other=0)
            final = tl.load(final_rows + key_row, mask=there, other=0)
            seen = (final[None, :] > 0) & (before[None, :] < index[:, None])
            seen = (seen | (key_row[None, :] == row[:, None])) & there[None, :]
            if CAUSAL:
                seen = seen & (n[None, :] <= token[:, None])
            which = there[:, None] & inside[None, :]
            key = tl.load(k + (n * k_stride + head * D)[:, None] + d[None, :], mask=which, other=0.0)
            value = tl.load(v + (n * v_stride + head * D)[:, None] + d[None, :], mask=which, other=0.0)
            peak, total, result = _fold(query, key, value, seen, peak, total, result, SCALE, ACC, WIDE)

        total = tl.where(total > 0.0, total, 1.0)  # of queries that are none
        which = valid[:, None] & inside[None, :]
        target = out + ((token * (KV_HEADS * GROUP) + query_head) * D)[:, None] + d[None, :]
        if num_parts == 1:
            tl.store(target, (result / total[:, None]).to(out.dtype.element_ty), mask=which)
        else:
            first_slot = (first_part.to(tl.int64) * KV_HEADS + head) * TILE + lane
            slot = first_slot + number.to(tl.int64) * (KV_HEADS * TILE)
            tl.store(part_out + (slot * D)[:, None] + d[None, :], result / total[:, None], mask=which)
            tl.store(part_lse + slot, peak + tl.log2(total), mask=valid)
            counter = finished + first_part * KV_HEADS + head
            tl.debug_barrier()
            if tl.atomic_add(counter, 1, sem="acq_rel") == num_parts - 1:
                tl.debug_barrier()
                tl.store(counter, 0)
                result = _merged(part_out, part_lse, first_slot, num_parts, valid, d, KV_HEADS, D, D_PAD, TILE, ACC)
                tl.store(target, result.to(out.dtype.element_ty), mask=which)


@triton.jit
def _merged(
    part_out,
    part_lse,
    first_slot,  # [TILE], the places of the queries in the first part
    num_parts,
    valid,
    d,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    TILE: tl.constexpr,
    ACC: tl.constexpr,
):
    """The parts of a tile, weighed by their log-sum-exp, in order."""
    which = valid[:, None] & (d < D)[None, :]
    peak = tl.full([TILE], HIDDEN, ACC)
    total = tl.full([TILE], 0.0, ACC)
    result = tl.full([TILE, D_PAD], 0.0, ACC)
    for number in range(num_parts):
        slot = first_slot + tl.cast(number, tl.int64) * (KV_HEADS * TILE)
        lse = tl.load(part_lse + slot, mask=valid, other=HIDDEN)
        higher = tl.maximum(peak, lse)
        shrink = tl.exp2(peak - higher)
        weight = tl.exp2(lse - higher)
        piece = tl.load(part_out + (slot * D)[:, None] + d[None, :], mask=which, other=0.0)
        result = result * shrink[:, None] + piece * weight[:, None]
        total = total * shrink + weight
        peak = higher
    total = tl.where(total > 0.0, total, 1.0)  # of queries that are none
    return result / total[:, None]


@triton.jit
def write_kv(
    k,
    v,
    keys,
    values,
    targets,  # [R], the page that a row's keys and values go to, -1: none
    k_stride,
    v_stride,
    L: tl.constexpr,
    L_PAD: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
):
    """Keys and values of final blocks to their pages. Grid: rows, key heads."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    page = tl.load(targets + row)
    if page >= 0:
        position = tl.arange(0, L_PAD)
        d = tl.arange(0, D_PAD)
        which = (position < L)[:, None] & (d < D)[None, :]
        token = (row * L + position).to(tl.int64)
        to = (((page.to(tl.int64) * L + position) * KV_HEADS + head) * D)[:, None] + d[None, :]
        tl.store(keys + to, tl.load(k + (token * k_stride + head * D)[:, None] + d[None, :], mask=which), mask=which)
        tl.store(values + to, tl.load(v + (token * v_stride + head * D)[:, None] + d[None, :], mask=which), mask=which)
