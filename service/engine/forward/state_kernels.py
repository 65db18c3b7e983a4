"""Triton kernels of states that only the device knows. `row_states.py` calls them and has their definitions in torch.

R rows of L tokens. A state is int32 `[L]`: the tokens of a block, the mask token at masked positions.
"""

import triton
import triton.language as tl

from service.decode.rules import ENTROPY, JOINTLY, LEFT

_LEFT, _ENTROPY, _JOINTLY = tl.constexpr(LEFT), tl.constexpr(ENTROPY), tl.constexpr(JOINTLY)
_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def place_states(
    tokens,  # [R, L] int32: the states that the host knows; here the others are placed, too
    states,  # [R, L] int32: all states
    earlier,  # [E, L] int32: the states after earlier forwards
    sources,  # [R] int32: the row's index in `earlier`, -1 if the host knows its state
    final,  # [R] int32: 1 for a row that is final if its state is complete
    targets,  # [R] int32: the page that such a row writes, -1 for none
    MASK_TOKEN,
    L: tl.constexpr,
    PAD: tl.constexpr,
):
    """A row whose state is not complete is not final and writes no page. Grid: rows."""
    row = tl.program_id(0)
    lane = tl.arange(0, PAD)
    inside = lane < L
    source = tl.load(sources + row)
    state = tl.load(tokens + row * L + lane, mask=inside, other=0)
    if source >= 0:
        state = tl.load(earlier + source * L + lane, mask=inside, other=0)
        tl.store(tokens + row * L + lane, state, mask=inside)
        if tl.sum((inside & (state == MASK_TOKEN)).to(tl.int32), 0) > 0:
            tl.store(final + row, 0)
            tl.store(targets + row, -1)
    tl.store(states + row * L + lane, state, mask=inside)


@triton.jit
def _mixed(words, part):
    """The next word of splitmix64, as `logits_sampler.noise_keys`."""
    words = (words ^ part) + tl.full([1], 0x9E3779B97F4A7C15, tl.uint64)
    words = (words ^ (words >> 30)) * tl.full([1], 0xBF58476D1CE4E5B9, tl.uint64)
    words = (words ^ (words >> 27)) * tl.full([1], 0x94D049BB133111EB, tl.uint64)
    return words ^ (words >> 31)


@triton.jit
def noise_key(low, high, positions, revealed):
    """The two words of the noise's key at absolute positions `[P]`, of the words of a seed and the revealed tokens."""
    positions = positions.to(tl.uint64)
    none = positions ^ positions
    seed = low.to(tl.uint32, bitcast=True).to(tl.uint64) | (high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32)
    words = _mixed(_mixed(_mixed(none, seed), positions), revealed.to(tl.uint64))
    return words.to(tl.uint32), (words >> 32).to(tl.uint32)


@triton.jit
def locate_positions(
    states,  # [R, L] int32
    table,  # [M, 5] int32: row, number among its masked positions or -1, two words of the seed, the block's start
    positions,  # [M] int32: row * L + position - SHIFT; those with a number are computed.
    #             With DRAFTS [R, L]: the slots, read
    param_table,  # [M, 6] int32: as of `sampling_kernels.sample`; the noise's keys of the same positions are computed.
    #               With DRAFTS as of `candidate_kernels.choose_candidate`: slot and position are computed, too
    MASK_TOKEN,
    L: tl.constexpr,
    PAD: tl.constexpr,
    DRAFTS: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Grid: positions."""
    index = tl.program_id(0)
    row = tl.load(table + index * 5)
    number = tl.load(table + index * 5 + 1)
    if number >= 0:
        lane = tl.arange(0, PAD)
        masked = (tl.load(states + row * L + lane, mask=lane < L, other=-1) == MASK_TOKEN).to(tl.int32)
        chosen = (masked > 0) & (tl.cumsum(masked, 0) == number + 1)
        position = tl.sum(tl.where(chosen, lane, 0), 0)
        if DRAFTS:
            # a row may have fewer masked positions than numbers: the results of the others are not read
            tl.store(param_table + index * 6 + 4, tl.maximum(tl.load(positions + row * L + position), 0))
            tl.store(param_table + index * 6 + 5, row * L + position - SHIFT)
        else:
            tl.store(positions + index, row * L + position - SHIFT)
        single = tl.arange(0, 1)
        seed, start = table + index * 5 + 2, tl.load(table + index * 5 + 4)
        first, second = noise_key(
            tl.load(seed + single),
            tl.load(seed + 1 + single),
            start + position + single,
            L - tl.sum(masked, 0) + single,
        )
        keys = param_table + index * 6 + 2 + single
        tl.store(keys, first.to(tl.int32, bitcast=True))
        tl.store(keys + 1, second.to(tl.int32, bitcast=True))


@triton.jit
def _double(words):
    """The float64 number of two words, `[1]`."""
    single = tl.arange(0, 1)
    low = tl.load(words + single).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(words + 1 + single).to(tl.uint32, bitcast=True).to(tl.uint64)
    return (low | (high << 32)).to(tl.float64, bitcast=True)


@triton.jit
def _rule_picks(masked, lane, confidence, entropy, rule, sure, L: tl.constexpr):
    """The picks of a rule (`decode/rules.py`) among masked positions, the first ones in an order, `[PAD]`.

    `rule`, five words: the order modulo 4 (`_CONFIDENCE`, …), the number of picks, the bits of the threshold in float32
    (infinity: none), two words of the bound in float64 (infinity: none). There are `count` picks at least; more of them
    up to the threshold, or within the bound (`entropy_bounded`). Ties go to the lowest position. Of `JointlyAbove`
    `sure` `[1]` is the product of the confidences of earlier picks. It is returned with these picks', NaN without any:
    then no later forward has picks.
    """
    by = tl.load(rule) % 4
    count = tl.load(rule + 1)
    score = confidence
    if by == _LEFT:
        score = -lane.to(tl.float32)
    if by == _ENTROPY:
        score = -entropy
    higher = (score[None, :] > score[:, None]) | ((score[None, :] == score[:, None]) & (lane[None, :] < lane[:, None]))
    rank = tl.sum((higher & masked[None, :]).to(tl.int32), 1)
    threshold = tl.load(rule + 2).to(tl.float32, bitcast=True)
    bound = _double(rule + 3)
    if by == _JOINTLY:
        product = tl.full([1], 1.0, tl.float64)
        joint = tl.full([1], float("nan"), tl.float64)
        for nth in range(tl.sum(masked.to(tl.int32), 0)):
            this = tl.sum(tl.where(masked & (rank == nth), confidence, 0.0), 0).to(tl.float64)
            product *= this
            if (nth == count) & (tl.sum((product > bound / sure).to(tl.int32), 0) > 0):
                count += 1
                joint = product
        sure *= joint
    elif tl.sum((bound < _INFINITY).to(tl.int32), 0) > 0:
        largest = tl.full([1], 0.0, tl.float64)
        total = tl.full([1], 0.0, tl.float64)
        within = tl.full([1], 1, tl.int32)
        least = count
        for nth in range(L):
            this = tl.sum(tl.where(masked & (rank == nth), entropy, 0.0), 0).to(tl.float64) + tl.zeros([1], tl.float64)
            total += tl.minimum(this, largest)
            largest = tl.maximum(this, largest)
            within = within & ((total <= bound) | (nth < least)).to(tl.int32)
            count = tl.maximum(count, tl.sum(within, 0) * (nth + 1))
    return masked & ((rank < count) | (confidence > threshold)), sure


@triton.jit
def reveal_picks(
    states,  # [R, L] int32: the picks are revealed here
    values,  # [M, 4] float32: as of `sampling_kernels.sample`
    order,  # [M] int32: the index in `values` of each masked position, row by row
    table,  # [R, 6] int32: the row's first index in `order`, then the rule as of `_rule_picks`. To the rule's order is
    #         added four times the number of the row's masked positions that are read, the leftmost ones
    MASK_TOKEN,
    L: tl.constexpr,
    PAD: tl.constexpr,
):
    """Reveals the picks of each row's rule. Grid: rows."""
    row = tl.program_id(0)
    if tl.load(table + row * 6 + 1) > 3:  # else no position is read
        lane = tl.arange(0, PAD)
        state = tl.load(states + row * L + lane, mask=lane < L, other=-1)
        tl.debug_barrier()  # every warp has read the state before one changes it
        masked = state == MASK_TOKEN
        number = tl.cumsum(masked.to(tl.int32), 0) - 1
        masked = masked & (number < tl.load(table + row * 6 + 1) // 4)
        value = values + 4 * tl.load(order + tl.load(table + row * 6) + number, mask=masked, other=0).to(tl.int64)
        token = tl.load(value, mask=masked, other=0.0).to(tl.int32, bitcast=True)
        confidence = tl.load(value + 1, mask=masked, other=-1.0)
        entropy = tl.load(value + 2, mask=masked, other=0.0)
        sure = tl.full([1], 1.0, tl.float64)
        picked, sure = _rule_picks(masked, lane, confidence, entropy, table + row * 6 + 1, sure, L)
        tl.store(states + row * L + lane, token, mask=picked)


@triton.jit
def begin_chained(
    states,  # [R, L] int32
    table,  # [R, 14] int32: as of `reveal_chained`
    param_table,  # [R * L, 6] int32: temperature's bits, flags, two words of the noise's key are computed; the rest is
    #               the sampler's. Of positions that are not masked the flags are -1: they are not sampled
    MASK_TOKEN,
    L: tl.constexpr,
    PAD: tl.constexpr,
):
    """The sampler's parameters at all positions of a chain's forward. Grid: rows."""
    row = tl.program_id(0)
    param = table + row * 14
    lane = tl.arange(0, PAD)
    inside = lane < L
    masked = tl.load(states + row * L + lane, mask=inside, other=-1) == MASK_TOKEN
    revealed = L - tl.sum(masked.to(tl.int32), 0)
    first, second = noise_key(tl.load(param + 4), tl.load(param + 5), tl.load(param + 6) + lane, revealed)
    to = param_table + (row * L + lane) * 6
    tl.store(to, tl.load(param + 2), mask=inside)
    tl.store(to + 1, tl.where(masked, tl.load(param + 3), -1), mask=inside)
    tl.store(to + 2, first.to(tl.int32, bitcast=True), mask=inside)
    tl.store(to + 3, second.to(tl.int32, bitcast=True), mask=inside)


@triton.jit
def reveal_chained(
    states,  # [R, L] int32: the picks are revealed here
    drawn,  # [R * L, 4] float32: as of `sampling_kernels.sample`, of all positions
    table,  # [R, 14] int32: the number of forwards before, the number of those that reveal, temperature's bits, flags,
    #         two words of the seed, the block's start, the rule as of `_rule_picks`, two words of its `sure`
    values,  # [K, R, L, 4] float32: the numbers in `drawn` of a row's masked positions, one after another
    MASK_TOKEN,
    L: tl.constexpr,
    PAD: tl.constexpr,
):
    """One forward of a chain (`chains.py`): reveals the picks of each row's rule. Grid: rows."""
    row = tl.program_id(0)
    param = table + row * 14
    number = tl.load(param)
    sure = _double(param + 12)
    lane = tl.arange(0, PAD)
    masked = tl.load(states + row * L + lane, mask=lane < L, other=-1) == MASK_TOKEN
    tl.debug_barrier()  # every warp has read what one of them changes
    tl.store(param, number + 1)
    if (number < tl.load(param + 1)) & (tl.sum(masked.to(tl.int32), 0) > 0):
        at = drawn + 4 * (row * L + lane).to(tl.int64)
        token = tl.load(at, mask=masked, other=0.0)
        confidence = tl.load(at + 1, mask=masked, other=-1.0)
        entropy = tl.load(at + 2, mask=masked, other=0.0)
        index = (number.to(tl.int64) * tl.num_programs(0) + row) * L + tl.cumsum(masked.to(tl.int32), 0) - 1
        tl.store(values + index * 4, token, mask=masked)
        tl.store(values + index * 4 + 1, confidence, mask=masked)
        tl.store(values + index * 4 + 2, entropy, mask=masked)
        tl.store(values + index * 4 + 3, tl.load(at + 3, mask=masked, other=0.0), mask=masked)
        picked, sure = _rule_picks(masked, lane, confidence, entropy, param + 7, sure, L)
        tl.store(states + row * L + lane, token.to(tl.int32, bitcast=True), mask=picked)
        bits, single = sure.to(tl.uint64, bitcast=True), tl.arange(0, 1)
        tl.store(param + 12 + single, bits.to(tl.uint32).to(tl.int32, bitcast=True))
        tl.store(param + 13 + single, (bits >> 32).to(tl.uint32).to(tl.int32, bitcast=True))
