"""Triton kernels that sample a position's token, with its confidence and entropy. `logits_sampler.py` calls them.

The vocabulary is divided into parts of PART tokens. A program keeps a few numbers of each of its parts; the last
program of a position merges them, in order. So a position's numbers depend neither on other positions nor on the number
of programs. A temperature below 1 divides only the logits from which tokens are drawn: confidences and entropies are
those at 1. Gumbel noise is the hash of `logits_sampler.py`. It is computed only where a token can still win.
"""

import triton
import triton.language as tl

#: below any logit, but finite: infinity less infinity is no number
LOWEST = tl.constexpr(-1.0e30)
#: the largest token, for a minimum over tokens
_NO_TOKEN = tl.constexpr(2147483647)
#: the numbers of a position in the table `param_table`
NUM_PARAMS = 6
#: In the second of them: this bit says whether noise is added. The bits below it count a position's finished programs.
#: A negative number says that the position is not read.
NOISY = 1 << 16
#: and this bit whether the two tokens FIRST and SECOND may not be chosen
RESTRICTED = 1 << 17
#: the numbers of a part: the highest logit, the sum of exponentials below it, the sum of these times the logits, the
#: best score of the program so far, its token's bits, the sum of exponentials at a temperature below 1, and the highest
#: logit that may be chosen
PART_NUMBERS = 7
_PARAMS, _NUMBERS = tl.constexpr(NUM_PARAMS), tl.constexpr(PART_NUMBERS)
_NOISY, _RESTRICTED = tl.constexpr(NOISY), tl.constexpr(RESTRICTED)


@triton.jit
def _mix(words):
    """Wellons' lowbias32 on uint32."""
    words = words ^ (words >> 16)
    words = words * tl.full([1], 0x7FEB352D, tl.uint32)
    words = words ^ (words >> 15)
    words = words * tl.full([1], 0x846CA68B, tl.uint32)
    return words ^ (words >> 16)


@triton.jit
def gumbel(words):
    """Standard Gumbel noise of uint32 words, as `logits_sampler.gumbel` up to the logarithms' rounding, in float32.

    log(1 - share) is the logarithm of the rounded difference, less the rounded part: Triton has no log1p.
    """
    share = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 2^-32
    share = tl.minimum(share, 0.999999940395355)  # 1 - 2^-24
    rest = 1.0 - share
    rounded = share - (1.0 - rest)
    return -tl.log(rounded / rest - tl.log(rest))


#: above any noise, which is at most 33 log(2)
MOST_NOISE = tl.constexpr(22.9)
#: above the relative error of a score that is not rounded as the definition says
_ROUNDING = tl.constexpr(1e-6)


@triton.jit
def noise_limit(words):
    """A number above `gumbel(words)`, by few operations and without a logarithm.

    Noise is at most -log(share). A number's bits, over 2^23 and less 127, are at most its logarithm to base 2, since
    log2(1 + m) >= m. The constants are log(2) / 2^23 and (127 + 32) log(2), the latter raised by 1e-4 for rounding.
    """
    bits = (words.to(tl.float32) + 0.5).to(tl.int32, bitcast=True)
    return 110.2105 - bits.to(tl.float32) * 8.262958295e-08


@triton.jit
def hashed(tokens, first, second):
    """The words of tokens under a key of two words."""
    words = _mix(tokens.to(tl.uint32) * tl.full([1], 0x9E3779B1, tl.uint32) + first)
    return _mix(words ^ second)


@triton.jit
def _read(values, temperature):
    """Logits -> the logits whose confidences rules read: over a temperature above 1. Greedy positions have 1."""
    if temperature > 1.0:
        values = tl.div_rn(values, temperature)
    return values


@triton.jit
def _drawn(read, temperature):
    """The logits that rules read -> those from which tokens are drawn: over a temperature below 1. It keeps order."""
    if temperature < 1.0:
        read = tl.maximum(tl.div_rn(read, temperature), LOWEST)
    return read


@triton.jit
def _load_part(row, V, part, temperature, PART: tl.constexpr, NOISE: tl.constexpr):
    """The tokens of a part, whether they exist, and the logits that rules read. Without NOISE temperatures are 1."""
    token = part * PART + tl.arange(0, PART)
    there = token < V
    values = tl.load(row + token, mask=there, other=0.0).to(tl.float32)
    read = _read(values, temperature) if NOISE else values
    return token, there, tl.where(there, tl.maximum(read, LOWEST), LOWEST)


@triton.jit
def _possible(token, there, flags, MASK_TOKEN, FIRST, SECOND):
    """Whether tokens may be chosen. `flags`: the position's number with `RESTRICTED`."""
    is_free = (flags & _RESTRICTED) == 0
    return there & (token != MASK_TOKEN) & (is_free | ((token != FIRST) & (token != SECOND)))


@triton.jit
def _parts_of_program(PARTS):
    """The first part of a program, and the end of its parts."""
    count = tl.cdiv(PARTS, tl.num_programs(1))
    first = tl.program_id(1) * count
    return first, tl.minimum(first + count, PARTS)


@triton.jit
def find_likeliest(
    logits, param_table, work, V, V_STRIDE, MASK_TOKEN, FIRST, SECOND, PART: tl.constexpr, PARTS: tl.constexpr
):
    """The highest logit of each part that may be chosen. Grid and arguments are those of `sample`."""
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * V_STRIDE
    numbers = work + index * (1 + _NUMBERS * PARTS) + 1
    temperature = tl.load(param_table + index * _PARAMS).to(tl.float32, bitcast=True)
    flags = tl.load(param_table + index * _PARAMS + 1)
    first_part, end = _parts_of_program(PARTS)
    for part in tl.range(first_part, end, num_stages=3):
        token, there, read = _load_part(row, V, part, temperature, PART, True)
        possible = _possible(token, there, flags, MASK_TOKEN, FIRST, SECOND)
        highest = tl.max(tl.where(possible, read, LOWEST), 0)
        tl.store(numbers + (_NUMBERS - 1) * PARTS + part, _drawn(highest, temperature))


@triton.jit
def sample(
    logits,  # [M, V], V_STRIDE numbers from row to row
    param_table,  # [M, 6] int32: temperature's bits, flags and finished programs, two words of the noise's key, token
    #               or -1, the bits of min-p's logarithm
    work,  # [M, 1 + 7 PARTS] float32: the logsumexp of the logits that rules read, then the numbers of the parts
    out,  # [M, 4] float32: the token's bits, confidence, entropy, log-probability at the temperature
    V,
    V_STRIDE,
    MASK_TOKEN,
    FIRST,
    SECOND,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_PAD: tl.constexpr,
    NOISE: tl.constexpr,
    MIN_P: tl.constexpr,
):
    """Grid: positions, the programs of a position. With MIN_P `find_likeliest` has run."""
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * V_STRIDE
    param = param_table + index * _PARAMS
    flags = tl.load(param + 1)
    if flags < 0:
        return
    numbers = work + index * (1 + _NUMBERS * PARTS) + 1
    lane = tl.arange(0, PARTS_PAD)
    temperature = tl.load(param).to(tl.float32, bitcast=True)
    noisy = (flags & _NOISY) != 0
    first = tl.load(param + 2).to(tl.uint32, bitcast=True)
    second = tl.load(param + 3).to(tl.uint32, bitcast=True)
    if MIN_P:
        likeliest = tl.load(numbers + (_NUMBERS - 1) * PARTS + lane, lane < PARTS, LOWEST)
        threshold = tl.max(likeliest, 0) + tl.load(param + 5).to(tl.float32, bitcast=True)
    first_part, end = _parts_of_program(PARTS)
    steepness = 1.0 / tl.minimum(temperature, 1.0)
    # the best score of the program's parts so far, and its token
    best = tl.full([], LOWEST, tl.float32)
    chosen = tl.full([], 0, tl.int32)
    for part in tl.range(first_part, end, num_stages=3):
        token, there, read = _load_part(row, V, part, temperature, PART, NOISE)
        peak = tl.max(read, 0)
        below = read - peak
        weight = tl.where(there, tl.exp(below), 0.0)
        tl.store(numbers + part, peak)
        tl.store(numbers + (1 + tl.arange(0, 2)) * PARTS + part, tl.sum(tl.join(weight, weight * below), 0))
        most = peak  # no score of the part is higher
        if NOISE:
            most = _drawn(peak, temperature)
            if temperature < 1.0:
                tl.store(numbers + 5 * PARTS + part, tl.sum(tl.where(there, tl.exp(below * steepness), 0.0), 0))
            if noisy:
                most += MOST_NOISE
        if most > best:
            possible = _possible(token, there, flags, MASK_TOKEN, FIRST, SECOND)
            if MIN_P:
                possible = possible & (_drawn(read, temperature) >= threshold)
            if NOISE and noisy:
                words = hashed(token, first, second)
                limit = tl.max(tl.where(possible, read * steepness + noise_limit(words), LOWEST), 0)
                if limit + _ROUNDING * (tl.abs(most) + tl.abs(best) + 50.0) > best:
                    score = _drawn(read, temperature) + gumbel(words)
                    best, chosen = _better(tl.where(possible, score, LOWEST), token, best, chosen)
            else:
                best, chosen = _better(tl.where(possible, read, LOWEST), token, best, chosen)
        tl.store(numbers + 3 * PARTS + part, best)
        tl.store(numbers + 4 * PARTS + part, chosen.to(tl.float32, bitcast=True))

    tl.debug_barrier()
    finished = tl.atomic_add(param + 1, 1, sem="acq_rel") % _NOISY
    if finished == tl.num_programs(1) - 1:
        tl.debug_barrier()
        _merge(row, param, numbers, out + index * 4, temperature, lane, PARTS, NOISE)


@triton.jit
def _better(score, token, best, chosen):
    """The best score and its token, after those of a part. The first of equal scores wins."""
    highest = tl.max(score, 0)
    first = tl.min(tl.where(score == highest, token, _NO_TOKEN), 0)
    return tl.maximum(best, highest), tl.where(highest > best, first, chosen)


@triton.jit
def _merge(row, param, numbers, out, temperature, lane, PARTS: tl.constexpr, NOISE: tl.constexpr):
    """Merges the numbers of a position's parts. The first of equal scores wins."""
    inside = lane < PARTS
    peaks = tl.load(numbers + lane, inside, LOWEST)
    totals = tl.load(numbers + PARTS + lane, inside, 0.0)
    moments = tl.load(numbers + 2 * PARTS + lane, inside, 0.0)
    bests = tl.load(numbers + 3 * PARTS + lane, inside, LOWEST)
    tokens = tl.load(numbers + 4 * PARTS + lane, inside, 0.0).to(tl.int32, bitcast=True)
    highest = tl.max(peaks, 0)
    below = peaks - highest
    shrink = tl.exp(below)
    total = tl.sum(totals * shrink, 0)
    # the sum of exp(x - highest) (x - highest)
    moment = tl.sum((moments + totals * below) * shrink, 0)
    token = tl.min(tl.where(inside & (bests == tl.max(bests, 0)), tokens, _NO_TOKEN), 0)
    rescored = tl.load(param + 4)
    token = tl.where(rescored < 0, token, rescored)
    lse = highest + tl.log(total)
    value = tl.load(row + token).to(tl.float32)
    value = _read(value, temperature)
    confidence = value - lse
    logprob = confidence
    if NOISE:  # noqa: SIM102 - greedy positions need no more registers
        if temperature < 1.0:
            cold_peaks, cold_highest = _drawn(peaks, temperature), _drawn(highest, temperature)
            colds = tl.load(numbers + 5 * PARTS + lane, inside, 0.0)
            cold_lse = cold_highest + tl.log(tl.sum(colds * tl.exp(cold_peaks - cold_highest), 0))
            logprob = tl.div_rn(value, temperature) - cold_lse
    tl.store(out, token.to(tl.float32, bitcast=True))
    tl.store(out + 1, tl.exp(confidence))
    tl.store(out + 2, tl.log(total) - moment / total)
    tl.store(out + 3, logprob)
    tl.store(numbers - 1, lse)
