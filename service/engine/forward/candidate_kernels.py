"""Triton kernels of the draft vocabulary. `draft_vocabulary.py` calls them and has their definitions in torch.

`keep_candidates` ends the choice of candidates from a position's logits. `candidate_logits` and `choose_candidate`
sample a draft from them: only the candidates' rows of the output head are multiplied. M positions, C candidates.
"""

import triton
import triton.language as tl

from service.engine.forward.sampling_kernels import LOWEST, gumbel, hashed
from service.engine.forward.state_kernels import noise_key, rule_picks

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
def _choose(logit, token, there, temperature, other, noisy, first, second, PAD: tl.constexpr, NOISE: tl.constexpr):
    """P positions with PAD lanes each, `[P, PAD]`, or `[P, 1]` for a position's numbers.

    -> the tokens, confidences and entropies, `[P]`.
    """
    value = tl.where(there, tl.maximum(logit / tl.maximum(temperature, 1.0), LOWEST), LOWEST)
    peak = tl.max(value, 1)[:, None]
    part = tl.where(there, tl.exp(value - peak), 0.0)
    total = tl.sum(part, 1)[:, None]
    moment = tl.sum(part * (value - peak), 1)[:, None]
    weight = peak + tl.log(total)
    higher = tl.maximum(weight, other)
    all_weight = higher + tl.log(tl.exp(weight - higher) + tl.exp(other - higher))
    score = tl.where(there, tl.maximum(logit / temperature, LOWEST), LOWEST)
    if NOISE:
        score = score + tl.where(noisy, gumbel(hashed(token, first, second)), 0.0)
    score = tl.where(there, score, 2.0 * LOWEST)
    lane = tl.arange(0, PAD)[None, :]
    best = tl.min(tl.where(score == tl.max(score, 1)[:, None], lane, PAD), 1)
    chosen = lane == best[:, None]
    confidence = tl.exp(tl.sum(tl.where(chosen, value - all_weight, 0.0), 1))
    entropy = tl.sum(tl.log(total) - moment / total, 1)
    return tl.sum(tl.where(chosen, token, 0), 1).to(tl.int32), confidence, entropy


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
    index = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)[:, None]
    param = param_table + index * 6
    lane = tl.arange(0, PAD)[None, :]
    there = lane < C
    slot = tl.load(param + 4).to(tl.int64)
    token, confidence, entropy = _choose(
        tl.load(logits + index * C + lane, mask=there, other=0.0),
        tl.load(candidates + slot * C + lane, mask=there, other=0),
        there,
        tl.load(param).to(tl.float32, bitcast=True),
        tl.load(other_weights + slot),
        tl.load(param + 1) > 0,
        tl.load(param + 2).to(tl.uint32, bitcast=True),
        tl.load(param + 3).to(tl.uint32, bitcast=True),
        PAD,
        NOISE,
    )
    _store(out + tl.program_id(0).to(tl.int64) * 4 + tl.arange(0, 1), token, confidence, entropy, tl.arange(0, 1) == 0)


@triton.jit
def _store(out, token, confidence, entropy, there):
    tl.store(out, token.to(tl.float32, bitcast=True), mask=there)
    tl.store(out + 1, confidence, mask=there)
    tl.store(out + 2, entropy, mask=there)
    tl.store(out + 3, confidence * 0.0, mask=there)


@triton.jit
def reveal_drafts(
    logits,  # [R * L, C] float32
    candidates,  # [R * L, C] int64
    other_weights,  # [R * L] float32
    states,  # [R, L] int32: the tokens of blocks, the mask token at masked positions; the picks are revealed here
    table,  # [R, 12] int32: the number of forwards before, temperature's bits, whether noise is added, two words of the
    #         seed, the block's start, then the rule as of `state_kernels.rule_picks`
    values,  # [K, R, L, 4] float32: as `out` of `choose_candidate`, of a row's masked positions, one after another
    MASK_TOKEN,
    C: tl.constexpr,
    C_PAD: tl.constexpr,
    L: tl.constexpr,
    PAD: tl.constexpr,
):
    """One forward of a chain of drafts (`draft_chains.py`): chooses tokens, and reveals the picks. Grid: rows."""
    row = tl.program_id(0)
    param = table + row * 12
    number = tl.load(param)
    tl.store(param, number + 1)
    position = tl.arange(0, PAD)
    state = tl.load(states + row * L + position, mask=position < L, other=-1)
    masked = state == MASK_TOKEN
    count = tl.sum(masked.to(tl.int32), 0)
    if count > 0:
        at = (row * L + position).to(tl.int64)[:, None]
        lane = tl.arange(0, C_PAD)[None, :]
        there = lane < C
        first, second = noise_key(tl.load(param + 3), tl.load(param + 4), tl.load(param + 5) + position, L - count)
        token, confidence, entropy = _choose(
            tl.load(logits + at * C + lane, mask=masked[:, None] & there, other=0.0),
            tl.load(candidates + at * C + lane, mask=masked[:, None] & there, other=0),
            there,
            tl.load(param + 1).to(tl.float32, bitcast=True),
            tl.load(other_weights + at, mask=masked[:, None], other=0.0),
            tl.load(param + 2) > 0,
            first[:, None],
            second[:, None],
            C_PAD,
            True,
        )
        to = (number.to(tl.int64) * tl.num_programs(0) + row) * L + tl.cumsum(masked.to(tl.int32), 0) - 1
        _store(values + to * 4, token, confidence, entropy, masked)
        picked = rule_picks(masked, position, confidence, entropy, param + 6, L)
        tl.store(states + row * L + position, token, mask=picked)
