"""Triton kernels of states that only the device knows. `row_states.py` calls them and has their definitions in torch.

R rows of L tokens, N lines of the state table. A state is int32 `[L]`: the tokens of a block, the mask token at masked
positions.
"""

import triton
import triton.language as tl

from service.decode.drafts import NUM_STEPS
from service.decode.rules import ENTROPY, JOINTLY, LEFT

_LEFT, _ENTROPY, _JOINTLY = tl.constexpr(LEFT), tl.constexpr(ENTROPY), tl.constexpr(JOINTLY)
_INFINITY = tl.constexpr(float("inf"))
#: the steps that lead to drafts, and a request's lines of the state table (`rows.LINES`)
_NUM_STEPS, _LINES = tl.constexpr(NUM_STEPS), tl.constexpr(1 + 2**NUM_STEPS)


@triton.jit
def place_states(
    tokens,  # [R, L] int32: the states that the host knows; here the others are placed, too
    table,  # [N, L] int32: the state table; here the states that the host knows are placed
    lines,  # [R] int32: a row's line in the table, negative if only the table has its state, 0 for none
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
    line = tl.load(lines + row)
    if line > 0:
        tl.store(table + line * L + lane, tl.load(tokens + row * L + lane, mask=inside, other=0), mask=inside)
    if line < 0:
        state = tl.load(table - line * L + lane, mask=inside, other=0)
        tl.store(tokens + row * L + lane, state, mask=inside)
        if tl.sum((inside & (state == MASK_TOKEN)).to(tl.int32), 0) > 0:
            tl.store(final + row, 0)
            tl.store(targets + row, -1)


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
    states,  # [N, L] int32: the state table
    row_table,  # [R, 16] int32: as of `reveal_picks`
    table,  # [M, 2] int32: row, number among its masked positions or -1
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
    row = tl.load(table + index * 2)
    number = tl.load(table + index * 2 + 1)
    param = row_table + row * 16
    if number >= 0:
        lane = tl.arange(0, PAD)
        line = tl.load(param + 14)
        masked = (tl.load(states + line * L + lane, mask=lane < L, other=-1) == MASK_TOKEN).to(tl.int32)
        chosen = (masked > 0) & (tl.cumsum(masked, 0) == number + 1)
        position = tl.sum(tl.where(chosen, lane, 0), 0)
        if DRAFTS:
            # a row may have fewer masked positions than numbers: the results of the others are not read
            tl.store(param_table + index * 6 + 4, tl.maximum(tl.load(positions + row * L + position), 0))
            tl.store(param_table + index * 6 + 5, row * L + position - SHIFT)
        else:
            tl.store(positions + index, row * L + position - SHIFT)
        single = tl.arange(0, 1)
        first, second = noise_key(
            tl.load(param + 4 + single),
            tl.load(param + 5 + single),
            tl.load(param + 6) + position + single,
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

    `rule`, five words: the order (`_CONFIDENCE`, …), the number of picks, the bits of the threshold in float32
    (infinity: none), two words of the bound in float64 (infinity: none). There are `count` picks at least; more of them
    up to the threshold, or within the bound (`entropy_bounded`). Ties go to the lowest position. Of `JointlyAbove`
    `sure` `[1]` is the product of the confidences of earlier picks. It is returned with these picks', NaN without any:
    then no later forward has picks.
    """
    by = tl.load(rule)
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
def begin_replay(
    states,  # [R, L] int32
    table,  # [R, 16] int32: as of `reveal_picks`
    param_table,  # [R * L, 6] int32: temperature's bits, flags, two words of the noise's key are computed; the rest is
    #               the sampler's. Of positions that are not masked the flags are -1: they are not sampled
    MASK_TOKEN,
    L: tl.constexpr,
    PAD: tl.constexpr,
):
    """The sampler's parameters at all positions of a replay. Grid: rows."""
    row = tl.program_id(0)
    param = table + row * 16
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
def _values_at(drawn, order, param, masked, row, lane, L: tl.constexpr, REPLAY: tl.constexpr):
    """The tokens' bits, confidences and entropies at a row's masked positions. `param`: its words in `row_table`."""
    if REPLAY:
        index = row * L + lane
    else:
        rank = tl.cumsum(masked.to(tl.int32), 0) - 1
        index = tl.load(order + tl.load(param + 2) + rank, mask=masked, other=0)
    value = drawn + 4 * index.to(tl.int64)
    token = tl.load(value, mask=masked, other=0.0).to(tl.int32, bitcast=True)
    return token, tl.load(value + 1, mask=masked, other=-1.0), tl.load(value + 2, mask=masked, other=0.0)


@triton.jit
def _draft(
    states, table, drawn, order, row_table, row, state, was_masked, MASK_TOKEN, L: tl.constexpr, PAD: tl.constexpr,
    REPLAY: tl.constexpr,
):  # fmt: skip
    """Reveals the picks of the drafts that are passed, and drafts anew. Arguments as of `reveal_picks`.

    `state` `[PAD]`: a row's state after its picks. `was_masked`: its masked positions before.
    """
    param = row_table + row * 16
    lane = tl.arange(0, PAD)
    inside = lane < L
    line = tl.load(param + 14)
    first_line = line - (line - 1) % _LINES
    sure = tl.full([1], 1.0, tl.float64)
    num_drafts = (tl.load(param + 15) // 2) % 8
    read = row
    if tl.sum(was_masked.to(tl.int32), 0) == 0:
        read += tl.load(param + 15) // 16  # the block was complete, so the next one is decoded
    is_next = read > row
    seen = was_masked | (inside & is_next)
    token, confidence, entropy = _values_at(drawn, order, row_table + read * 16, seen, read, lane, L, REPLAY)
    if is_next:
        num_drafts = num_drafts * 0
        picked, sure = _rule_picks(seen, lane, confidence, entropy, param + 7, sure, L)
        state = tl.where(picked, token, MASK_TOKEN)
    for draft in range(1, num_drafts + 1):
        number = row + draft
        at = table + tl.load(row_table + number * 16 + 14) * L
        if REPLAY:
            at = states + number * L
        drafted = tl.load(at + lane, mask=inside, other=-1)
        if tl.sum((inside & (drafted != state)).to(tl.int32), 0) == 0:
            seen = inside & (state == MASK_TOKEN)
            token, confidence, entropy = _values_at(
                drawn, order, row_table + number * 16, seen, number, lane, L, REPLAY
            )
            picked, sure = _rule_picks(seen, lane, confidence, entropy, param + 7, sure, L)
            state = tl.where(picked, token, state)
    tl.debug_barrier()  # every warp has read the drafts
    drafted = state
    steps = tl.zeros([PAD], tl.int32)  # by position the bit of the step that reveals it
    for step in range(_NUM_STEPS):
        seen = inside & (drafted == MASK_TOKEN)
        picked, sure = _rule_picks(seen, lane, confidence, entropy, param + 7, sure, L)
        drafted = tl.where(picked, token, drafted)
        steps += tl.where(picked, 1 << step, 0)
    for draft in range(1, _LINES - 1):
        at = table + (first_line + 1 + draft) * L
        tl.store(at + lane, tl.where((steps & draft) > 0, token, state), mask=inside)
    if not is_next:
        tl.store(table + line * L + lane, state, mask=inside)


@triton.jit
def reveal_picks(
    states,  # [R, L] int32, in a replay: the rows' states, in which the picks are revealed
    table,  # [N, L] int32: the state table, in which the picks are revealed, too
    drawn,  # [M, 4] float32: as of `sampling_kernels.sample`; in a replay [R * L, 4], of all positions
    order,  # [M] int32: the index in `drawn` of each masked position, row by row; not read in a replay
    row_table,  # [R, 16] int32: the number of replays before, the number of those that reveal, temperature's bits and
    #             flags (not in a replay: the row's first index in `order`, and the number of its positions there), two
    #             words of the seed, the block's start, the rule as of `_rule_picks`, two words of its `sure`, the
    #             line, and the drafts. These are -1 for a draft itself, and 0 if no drafts follow. Else they are
    #             1 + 2 * the count of drafts, which are the next rows, + 16 * the distance to the next block's row or 0
    values,  # [K, R, L, 4] float32, in a replay: the numbers in `drawn` of a row's masked positions, one after another
    MASK_TOKEN,
    L: tl.constexpr,
    PAD: tl.constexpr,
    REPLAY: tl.constexpr,
):
    """Reveals the picks of each row's rule. Where drafts follow, the drafts' too, and drafts anew. Grid: rows."""
    row = tl.program_id(0)
    param = row_table + row * 16
    lane = tl.arange(0, PAD)
    inside = lane < L
    number = tl.load(param)
    sure = _double(param + 12)
    line = table + tl.load(param + 14) * L
    at = line
    if REPLAY:
        at = states + row * L
    state = tl.load(at + lane, mask=inside, other=-1)
    tl.debug_barrier()  # every warp has read what one of them changes
    was_masked = state == MASK_TOKEN
    masked = was_masked
    rank = tl.cumsum(masked.to(tl.int32), 0) - 1
    drafts = tl.load(param + 15)
    if REPLAY:
        tl.store(param, number + 1)
        index = row * L + lane
    else:
        masked = masked & (rank < tl.load(param + 3))
        index = tl.load(order + tl.load(param + 2) + rank, mask=masked, other=0)
    if (number < tl.load(param + 1)) & (tl.sum(masked.to(tl.int32), 0) > 0):
        value = drawn + 4 * index.to(tl.int64)
        token = tl.load(value, mask=masked, other=0.0)
        confidence = tl.load(value + 1, mask=masked, other=-1.0)
        entropy = tl.load(value + 2, mask=masked, other=0.0)
        if REPLAY:
            to = values + 4 * ((number.to(tl.int64) * tl.num_programs(0) + row) * L + rank)
            tl.store(to, token, mask=masked)
            tl.store(to + 1, confidence, mask=masked)
            tl.store(to + 2, entropy, mask=masked)
            tl.store(to + 3, tl.load(value + 3, mask=masked, other=0.0), mask=masked)
        picked, sure = _rule_picks(masked, lane, confidence, entropy, param + 7, sure, L)
        state = tl.where(picked, token.to(tl.int32, bitcast=True), state)
        tl.store(at + lane, state, mask=picked)
        bits, single = sure.to(tl.uint64, bitcast=True), tl.arange(0, 1)
        tl.store(param + 12 + single, bits.to(tl.uint32).to(tl.int32, bitcast=True))
        tl.store(param + 13 + single, (bits >> 32).to(tl.uint32).to(tl.int32, bitcast=True))
    if drafts > 0:
        _draft(states, table, drawn, order, row_table, row, state, was_masked, MASK_TOKEN, L, PAD, REPLAY)
    elif REPLAY and (tl.load(param + 14) > 0) & (drafts == 0):
        tl.store(line + lane, state, mask=inside)
