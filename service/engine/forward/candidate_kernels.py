"""Triton kernels of the draft vocabulary. `draft_vocabulary.py` calls them and has their definitions in torch.

`keep_candidates` ends the choice of candidates from a position's logits. `candidate_logits` and `choose_candidate`
sample a draft from them: only the candidates' rows of the output head are multiplied. M positions, C candidates.
"""

import triton
import triton.language as tl

from service.engine.forward.sampling_kernels import LOWEST, gumbel, hashed

#: the largest total probability of a position's candidates, so that the weight of all others is finite
MAX_SHARE = tl.constexpr(1.0 - 2.0**-24)


@triton.jit
def keep_candidates(
    highest,  # [M, C + 1], the largest logits of each position
    tokens,  # [M, C + 1] int64, their tokens
    table,  # [M, 2] int32: the index of the position in `totals`, the bits of the temperature that rules read
    totals,  # float32, STRIDE numbers apart: the logsumexp of the logits over that temperature
    candidates,  # [M, C] int64, the candidates
    weights,  # [M] float32, the weight of all other tokens
    STRIDE,
    MASK_TOKEN,
    C: tl.constexpr,
    PAD: tl.constexpr,
):
    """Drops the mask token, or else the least likely token. Grid: positions."""
    index = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, PAD)
    there = lane <= C
    value = tl.load(highest + index * (C + 1) + lane, mask=there, other=0.0).to(tl.float32)
    token = tl.load(tokens + index * (C + 1) + lane, mask=there, other=-1)
    masked = there & (token == MASK_TOKEN)
    # a padding lane is above any logit, so that it is never the least likely
    lowest = tl.argmin(tl.where(there, tl.maximum(value, LOWEST), -LOWEST), 0)
    dropped = tl.where(tl.max(masked.to(tl.int32), 0) > 0, tl.sum(tl.where(masked, lane, 0), 0), lowest)
    keep = there & (lane != dropped)
    tl.store(candidates + index * C + lane - (lane > dropped).to(tl.int32), token, mask=keep)
    temperature = tl.load(table + index * 2 + 1).to(tl.float32, bitcast=True)
    total = tl.load(totals + tl.load(table + index * 2).to(tl.int64) * STRIDE)
    share = tl.sum(tl.where(keep, tl.exp(value / temperature - total), 0.0), 0)
    tl.store(weights + index, total + tl.log(1.0 - tl.minimum(share, MAX_SHARE)))


@triton.jit
def candidate_logits(
    hidden,  # [positions of the forward, H], dense
    head,  # [V, H], dense
    candidates,  # [slots, C] int64
    param_table,  # [M, 6] int32: as of `choose_candidate`
    logits,  # [M, C] float32
    H,
    C,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    """Grid: positions, tiles of candidates."""
    index = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = lane < C
    slot = tl.load(param_table + index * 6 + 4).to(tl.int64)
    state = hidden + tl.load(param_table + index * 6 + 5).to(tl.int64) * H
    token = tl.load(candidates + slot * C + lane, mask=there, other=0)
    step = tl.arange(0, STEP)
    total = tl.full([TILE, STEP], 0.0, tl.float32)
    for start in range(0, H, STEP):
        column = start + step
        inside = column < H
        numbers = tl.load(state + column, mask=inside, other=0.0).to(tl.float32)
        which = there[:, None] & inside[None, :]
        weights = tl.load(head + token[:, None] * H + column[None, :], mask=which, other=0.0).to(tl.float32)
        total += weights * numbers[None, :]
    tl.store(logits + index * C + lane, tl.sum(total, 1), mask=there)


@triton.jit
def choose_candidate(
    logits,  # [M, C] float32
    candidates,  # [slots, C] int64
    other_weights,  # [slots] float32
    param_table,  # [M, 6] int32: temperature's bits, whether noise is added, two words of the noise's key, the slot of
    #               the position's candidates, the position in the forward
    out,  # [M, 4] float32: the token's bits, confidence, entropy, 0: a draft's log-probability is not needed
    C: tl.constexpr,
    PAD: tl.constexpr,
    NOISE: tl.constexpr,
):
    """Grid: positions."""
    index = tl.program_id(0).to(tl.int64)
    param = param_table + index * 6
    temperature = tl.load(param).to(tl.float32, bitcast=True)
    slot = tl.load(param + 4).to(tl.int64)
    lane = tl.arange(0, PAD)
    there = lane < C
    logit = tl.load(logits + index * C + lane, mask=there, other=0.0)
    value = tl.where(there, tl.maximum(logit / tl.maximum(temperature, 1.0), LOWEST), LOWEST)
    peak = tl.max(value, 0)
    part = tl.where(there, tl.exp(value - peak), 0.0)
    total = tl.sum(part, 0)
    moment = tl.sum(part * (value - peak), 0)
    weight = peak + tl.log(total)
    other = tl.load(other_weights + slot)
    higher = tl.maximum(weight, other)
    all_weight = higher + tl.log(tl.exp(weight - higher) + tl.exp(other - higher))
    token = tl.load(candidates + slot * C + lane, mask=there, other=0)
    score = tl.where(there, tl.maximum(logit / temperature, LOWEST), LOWEST)
    if NOISE:
        noisy = tl.load(param + 1) > 0
        first = tl.load(param + 2).to(tl.uint32, bitcast=True)
        second = tl.load(param + 3).to(tl.uint32, bitcast=True)
        score = score + tl.where(noisy, gumbel(hashed(token, first, second)), 0.0)
    score = tl.where(there, score, 2.0 * LOWEST)
    best = tl.min(tl.where(score == tl.max(score, 0), lane, PAD), 0)
    chosen = lane == best
    tl.store(out + index * 4, tl.sum(tl.where(chosen, token, 0), 0).to(tl.int32).to(tl.float32, bitcast=True))
    tl.store(out + index * 4 + 1, tl.exp(tl.sum(tl.where(chosen, value, 0.0), 0) - all_weight))
    tl.store(out + index * 4 + 2, tl.log(total) - moment / total)
    tl.store(out + index * 4 + 3, 0.0)
