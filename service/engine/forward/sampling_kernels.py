"""A Triton kernel that samples a position's token, with its confidence and entropy. `logits_sampler.py` calls it.

A program walks once over the logits of one position, as they are stored, and keeps for every lane a running maximum,
sum of exponentials, and sum of these times the logits (online softmax): nothing as wide as the vocabulary is stored.
Min-p is a share of the highest probability. If any position has it, tokens are chosen in a second walk.
Gumbel noise is the hash of `logits_sampler.py`, computed where it is added.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: below any logit, but finite: infinity less infinity is no number
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def _mix(words):
    """Wellons' lowbias32 on uint32."""
    words = words ^ (words >> 16)
    words = words * tl.full([1], 0x7FEB352D, tl.uint32)
    words = words ^ (words >> 15)
    words = words * tl.full([1], 0x846CA68B, tl.uint32)
    return words ^ (words >> 16)


@triton.jit
def _gumbel(tokens, first, second):
    """Standard Gumbel noise of tokens, as `logits_sampler.gumbel` up to the logarithms' rounding."""
    words = _mix(tokens.to(tl.uint32) * tl.full([1], 0x9E3779B1, tl.uint32) + first)
    words = _mix(words ^ second)
    share = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 2^-32
    share = tl.minimum(share, 0.999999940395355)  # 1 - 2^-24
    return (-tl.log(-tl.log(1.0 - share.to(tl.float64)))).to(tl.float32)


@triton.jit
def _choose(best, chosen, token, possible, scaled, noisy, first, second, NOISE: tl.constexpr):
    """The best scores and their tokens after another step of tokens, of which `possible` may be chosen."""
    score = scaled
    if NOISE:
        score = score + tl.where(noisy, _gumbel(token, first, second), 0.0)
    better = possible & (score > best)
    return tl.where(better, score, best), tl.where(better, token, chosen)


@triton.jit
def _load_scaled(row, token, there, temperature):
    """The logits of tokens over the temperature."""
    scaled = tl.load(row + token, mask=there, other=0.0).to(tl.float32) / temperature
    return tl.where(there, tl.maximum(scaled, LOWEST), LOWEST)


@triton.jit
def sample(
    logits,  # [M, V], V_STRIDE numbers from row to row
    params,  # [M, 6] int32: temperature's bits, whether noise is added, two words of the noise's key, token or -1,
    #          the bits of min-p's logarithm
    out,  # [M, 3] float64: token, confidence, entropy
    total_out,  # [M] float32: the logsumexp of the logits over the temperature
    V,
    V_STRIDE,
    MASK_TOKEN,
    STEP: tl.constexpr,
    NOISE: tl.constexpr,
    MIN_P: tl.constexpr,
):
    """Grid: positions."""
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * V_STRIDE
    param = params + index * 6
    temperature = tl.load(param).to(tl.float32, bitcast=True)
    lane = tl.arange(0, STEP)
    peak = tl.full([STEP], LOWEST, tl.float32)
    total = tl.full([STEP], 0.0, tl.float32)
    moment = tl.full([STEP], 0.0, tl.float32)
    best = tl.full([STEP], LOWEST, tl.float32)
    chosen = tl.full([STEP], 0, tl.int32)
    likeliest = tl.full([STEP], LOWEST, tl.float32)
    noisy = tl.load(param + 1) > 0
    first = tl.load(param + 2).to(tl.uint32, bitcast=True)
    second = tl.load(param + 3).to(tl.uint32, bitcast=True)
    for start in range(0, V, STEP):
        token = start + lane
        there = token < V
        scaled = _load_scaled(row, token, there, temperature)
        higher = tl.maximum(peak, scaled)
        part = tl.where(there, tl.exp(scaled - higher), 0.0)
        shrink = tl.exp(peak - higher)
        # the sum of exp(x - peak) (x - peak), carried over to the new peak
        moment = (moment + total * (peak - higher)) * shrink + part * (scaled - higher)
        total = total * shrink + part
        peak = higher
        possible = there & (token != MASK_TOKEN)
        if MIN_P:
            likeliest = tl.where(possible, tl.maximum(likeliest, scaled), likeliest)
        else:
            best, chosen = _choose(best, chosen, token, possible, scaled, noisy, first, second, NOISE)
    if MIN_P:
        least = tl.max(likeliest, 0) + tl.load(param + 5).to(tl.float32, bitcast=True)
        for start in range(0, V, STEP):
            token = start + lane
            there = token < V
            scaled = _load_scaled(row, token, there, temperature)
            possible = there & (token != MASK_TOKEN) & (scaled >= least)
            best, chosen = _choose(best, chosen, token, possible, scaled, noisy, first, second, NOISE)
    highest = tl.max(peak, 0)
    below = peak - highest
    shrink = tl.exp(below)
    all_total = tl.sum(total * shrink, 0)
    all_moment = tl.sum((moment + total * below) * shrink, 0)
    lse = highest + tl.log(all_total)
    top = tl.max(best, 0)
    token = tl.min(tl.where(best == top, chosen, 2147483647), 0)
    rescored = tl.load(param + 4)
    token = tl.where(rescored < 0, token, rescored)
    value = tl.load(row + token).to(tl.float32) / temperature
    tl.store(out + index * 3, token.to(tl.float64))
    tl.store(out + index * 3 + 1, tl.exp(value - lse).to(tl.float64))
    tl.store(out + index * 3 + 2, (tl.log(all_total) - all_moment / all_total).to(tl.float64))
    tl.store(total_out + index, lse)
