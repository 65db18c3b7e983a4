"""The definitions of the Triton kernels in torch: the same results, a hundred times faster than Triton's interpreter.

Each takes the grid and then the kernel's own arguments. `tests/model` and `tests/engine/forward` test the kernels
themselves, in the interpreter.
"""

# ruff: noqa: N803 - the names are those of the kernels
from collections.abc import Callable
from math import log, prod

import numpy as np
import torch

from service.decode.drafts import NUM_STEPS
from service.decode.policy import Prediction
from service.decode.rules import CONFIDENCE, ENTROPY, JOINTLY, JointlyAbove, entropy_bounded
from service.engine.forward.logits_sampler import _STEP, _mixed, gumbel
from service.engine.forward.rows import LINES
from service.engine.forward.sampling_kernels import NOISY, RESTRICTED
from service.model.attention.pages import Rounded, round_heads
from service.model.quantization.layers import quantize_activations
from service.model.quantization.schemes import scheme_named

_HIDDEN = -1e30
#: the multiprocessors of an H100
PROCESSORS = 132


def attend(grid, q, k, v, out, keys, values, key_scales, value_scales, items, pages, indices, final, part_out, part_lse,
           finished, *_, L, GROUP, KV_HEADS, D, SCALE, CAUSAL, **__):  # fmt: skip
    """Attention of each item's queries to pages and to the keys of its own unit. In numpy: items are many and small."""
    assert not finished.any()
    heads, index, is_final = out.view(-1, KV_HEADS, GROUP, D), indices.numpy(), final.numpy() > 0
    query = q.reshape(-1, KV_HEADS, GROUP, D).double().numpy()
    unit_kv = [tensor.reshape(-1, KV_HEADS, D).double().numpy() for tensor in (k, v)]
    for item in items[: 9 * grid[0]].view(-1, 9).tolist():
        first, count, table, start, stop, own_start, number, part, num_parts = item
        if not count:
            continue
        own_stop = -(-(first + count) // L) * L if number == num_parts - 1 else own_start
        rows, own_rows = np.arange(first, first + count) // L, np.arange(own_start, own_stop) // L
        before = is_final[own_rows] & (index[own_rows] < index[rows][:, None])
        seen = np.ones((count, stop - start + len(own_rows)), bool)
        seen[:, stop - start :] = before | (own_rows == rows[:, None])
        if CAUSAL:
            seen[:, stop - start :] &= np.arange(own_start, own_stop) <= np.arange(first, first + count)[:, None]
        read, skipped = pages[table + start // L : table + -(-stop // L)].long(), start % L
        key, value = (
            np.concatenate(
                [
                    _wide(cache, scales, read, q.dtype).view(-1, KV_HEADS, D).numpy()[skipped : skipped + stop - start],
                    numbers[own_start:own_stop],
                ]
            )
            for cache, scales, numbers in zip((keys, values), (key_scales, value_scales), unit_kv, strict=True)
        )
        queries = query[first : first + count].swapaxes(0, 1).reshape(KV_HEADS, -1, D)
        with np.errstate(all="ignore"):
            scores = queries @ key.transpose(1, 2, 0) * (SCALE * log(2))
            scores = np.where(seen.repeat(GROUP, 0), scores, _HIDDEN)
            highest = scores.max(-1, keepdims=True)
            weights = np.exp(scores - highest)
            total = weights.sum(-1, keepdims=True)
            result = torch.from_numpy(weights @ value.swapaxes(0, 1) / total)
        if num_parts == 1:
            heads[first : first + count] = result.unflatten(1, (count, GROUP)).transpose(0, 1).to(out.dtype)
            continue
        part_out[part + number, :, : count * GROUP] = result.to(part_out.dtype)
        part_lse[part + number, :, : count * GROUP] = torch.from_numpy((np.log(total) + highest)[..., 0] / log(2))
        if number == num_parts - 1:
            parts = slice(part, part + num_parts), slice(None), slice(count * GROUP)
            weights = (part_lse[parts].double() * log(2)).softmax(0)
            merged = (part_out[parts].double() * weights[..., None]).sum(0)
            heads[first : first + count] = merged.unflatten(1, (count, GROUP)).transpose(0, 1).to(out.dtype)


def _wide(cache, scales, pages, dtype):
    """Some pages in float64."""
    held = cache[pages] if scales is None else Rounded(cache[pages], scales[pages]).widened(dtype)
    return held.double()


def write_kv(grid, k, v, keys, values, targets, *_, L, **__):
    for row, page in enumerate(targets[: grid[0]].tolist()):
        if page >= 0:
            keys[page], values[page] = k[row * L : (row + 1) * L], v[row * L : (row + 1) * L]


def find_likeliest(*_, **__):
    """`sample` looks itself."""


def sample(grid, logits, param_table, work, out, width, stride, mask_token, *unsampled, NOISE, MIN_P, **_):
    temperature = param_table[:, 0].contiguous().view(torch.float32)[:, None]
    scaled, read = logits.float() / temperature, logits.float() / temperature.clamp(min=1)
    work[:, 0] = read.logsumexp(-1)
    scores = scaled.clone()
    scores[:, mask_token] = -torch.inf
    for token in unsampled:
        scores[(param_table[:, 1] & RESTRICTED) > 0, token] = -torch.inf
    if MIN_P:
        least = scores.amax(-1) + param_table[:, 5].contiguous().view(torch.float32)
        scores[scores < least[:, None]] = -torch.inf
    noisy = (param_table[:, 1] & NOISY).nonzero()[:, 0]
    if NOISE and len(noisy):
        scores[noisy] += gumbel(param_table[noisy, 2:4].long() & 0xFFFFFFFF, torch.arange(width))
    token = torch.where(param_table[:, 4] < 0, scores.argmax(-1), param_table[:, 4].long())
    out[:, 0] = token.int().view(torch.float32)
    out[:, 1] = (read.gather(1, token[:, None])[:, 0] - work[:, 0]).exp()
    out[:, 2] = torch.special.entr(read.softmax(-1)).sum(-1)
    out[:, 3] = scaled.gather(1, token[:, None])[:, 0] - scaled.logsumexp(-1)
    out[param_table[:, 1] < 0] = torch.nan  # not read


def keep_candidates(grid, highest, tokens, table, totals, candidates, weights, stride, mask_token, *, C, **_):
    """The likeliest tokens without the mask token, and the weight of all others."""
    possible = highest.float().masked_fill(tokens == mask_token, -torch.inf)
    chosen = possible.topk(C).indices
    candidates.copy_(tokens.gather(1, chosen))
    rows, temperature = table[:, 0].long(), table[:, 1].contiguous().view(torch.float32)[:, None]
    total = totals[rows]
    share = (highest.float().gather(1, chosen) / temperature - total[:, None]).exp().sum(-1)
    weights.copy_(total + torch.log1p(-share.clamp(max=1 - 2.0**-24)))


def candidate_logits(grid, hidden, head, candidates, param_table, logits, *_, **__):
    slots, positions = param_table[:, 4].long(), param_table[:, 5].long()
    logits.copy_(torch.einsum("mh,mch->mc", hidden[positions].float(), head[candidates[slots]].float()))


def choose_candidate(grid, logits, candidates, other_weights, param_table, out, *, NOISE, **_):
    temperature = param_table[:, 0].contiguous().view(torch.float32)[:, None]
    scaled, read = logits / temperature, logits / temperature.clamp(min=1)
    slots = param_table[:, 4].long()
    total, tokens = torch.logaddexp(read.logsumexp(-1), other_weights[slots]), candidates[slots]
    scores = scaled.clone()
    noisy = (param_table[:, 1] > 0).nonzero()[:, 0]
    if NOISE and len(noisy):
        scores[noisy] += gumbel(param_table[noisy, 2:4].long() & 0xFFFFFFFF, tokens[noisy])
    column = scores.argmax(-1, keepdim=True)
    out[:, 0] = tokens.gather(1, column)[:, 0].int().view(torch.float32)
    out[:, 1] = (read.gather(1, column)[:, 0] - total).exp()
    out[:, 2], out[:, 3] = torch.special.entr(read.softmax(-1)).sum(-1), 0


def place_states(grid, tokens, table, lines, final, targets, mask_token, *, L, **_):
    for row, line in enumerate(lines.tolist()):
        state = tokens.view(-1, L)[row]
        if line > 0:
            table[line] = state
        elif line < 0:
            state.copy_(table[-line])
            if (state == mask_token).any():
                final[row], targets[row] = 0, -1


def locate_positions(grid, states, row_table, table, positions, param_table, mask_token, *, L, DRAFTS, SHIFT, **_):
    rows = row_table.tolist()
    for index, (row, number) in enumerate(table.tolist()):
        low, high, start, line = *rows[row][4:7], rows[row][14]
        masked = (states[line] == mask_token).nonzero()[:, 0].tolist()
        if 0 <= number < len(masked):
            at = row * L + masked[number] - SHIFT
            if DRAFTS:
                param_table[index, 4], param_table[index, 5] = positions[row, masked[number]], at
            else:
                positions[index] = at
            seed = (high << 32) | (low & 0xFFFFFFFF)
            param_table[index, 2:4] = _noise_keys([seed], [start + masked[number]], [L - len(masked)])[0]


def _noise_keys(*parts):
    """Seeds, absolute positions and numbers of revealed tokens, integers that broadcast -> int32 `[..., 2]`."""
    words = np.zeros(np.broadcast_shapes(*map(np.shape, parts)), np.uint64)
    for part in parts:
        words = _mixed((words ^ np.asarray(part).astype(np.uint64)) + _STEP)
    return torch.from_numpy(words.view(np.int32).reshape(*words.shape, 2))


def begin_replay(grid, states, params, param_table, mask_token, *, L, **_):
    seeds, starts = params[:, 4:6].contiguous().view(torch.int64), params[:, 6:7]
    is_revealed = states != mask_token
    revealed = is_revealed.sum(1, keepdim=True)
    param_table[:, :2] = params[:, 2:4].repeat_interleave(L, 0)
    param_table[is_revealed.flatten(), 1] = -1
    param_table[:, 2:4] = _noise_keys(seeds, starts + torch.arange(L), revealed).flatten(0, 1)


def reveal_picks(grid, states, table, drawn, order, params, values, mask_token, *, L, REPLAY, **_):
    drafts = torch.stack([states[row] if REPLAY else table[params[row, 14]] for row in range(grid[0])])
    for row, (number, limit, *words) in enumerate(params[: grid[0]].tolist()):
        line, (first, read) = words[12], words[:2]
        state = states[row] if REPLAY else table[line]
        masked = (state == mask_token).nonzero()[:, 0]
        if not REPLAY:
            masked = masked[:read]
        if number < limit and len(masked):
            numbers = drawn[row * L + masked if REPLAY else order[first : first + len(masked)].long()]
            if REPLAY:
                values[number, row, : len(masked)] = numbers
            _reveal(state, masked, numbers, params[row, 7:14])
        if REPLAY and line and words[13] == 0:
            table[line] = state
    for row in (params[: grid[0], 15] > 0).nonzero()[:, 0].tolist():
        _draft(drafts, table, drawn, order, params, row, mask_token, REPLAY)
    if REPLAY:
        params[:, 0] += 1


def _draft(states, table, drawn, order, params, row, mask_token, replay):
    """Reveals the picks of the drafts that are passed, and drafts anew. `states`: the rows' states in this forward."""
    line, code = params[row, 14:].tolist()
    rule, length = params[row].clone()[7:14], states.shape[1]
    first, state, drafts = line - (line - 1) % LINES, states[row].clone(), code // 2 % 8
    is_next = code // 16 > 0 and not (state == mask_token).any()
    if is_next:
        row, drafts, state = row + code // 16, 0, torch.full_like(state, mask_token)

    def step(read, state):
        """-> all masked positions of a row's state, with their numbers, after its picks are revealed."""
        masked = (state == mask_token).nonzero()[:, 0]
        at = read * length + masked if replay else order[params[read, 2].item() + torch.arange(len(masked))].long()
        numbers = torch.zeros(length, 4)
        numbers[masked] = drawn[at]
        if len(masked):
            _reveal(state, masked, numbers[masked], rule)
        return numbers

    numbers = step(row, state)
    for draft in range(row + 1, row + 1 + drafts):
        if torch.equal(states[draft], state):
            numbers = step(draft, state)
    if not is_next:
        table[line] = state
    drafted, steps = state.clone(), torch.zeros(length, dtype=torch.int32)
    for step in range(NUM_STEPS):
        if len(masked := (drafted == mask_token).nonzero()[:, 0]):
            _reveal(drafted, masked, numbers[masked], rule)
        steps[(drafted != state) & (steps == 0)] = 1 << step
    for number in range(1, LINES - 1):
        table[first + 1 + number] = torch.where(steps & number > 0, drafted, state)


def _reveal(state, masked, numbers, rule):
    """Reveals the picks of a rule, five words and two of its `sure`, by the numbers of masked positions."""
    by, count = rule[0].item(), rule[1].item()
    threshold, bound, sure = rule[2:3].view(torch.float32), rule[3:5].view(torch.float64), rule[5:7].view(torch.float64)
    tokens, confidences, entropies, _ = numbers.unbind(1)
    prediction = Prediction(range(len(masked)), tokens.tolist(), confidences.tolist(), entropies=entropies.tolist())
    if by == CONFIDENCE:
        picks = prediction.most_confident(count) if count else ()
    elif by == JOINTLY:
        picks = JointlyAbove(bound.item() / sure.item())(prediction)
        sure *= prod(pick.confidence for pick in picks) if picks else torch.nan
    elif bound < torch.inf:
        picks = entropy_bounded(prediction, _ordered(by, entropies), bound.item(), count)
    else:
        picks = prediction.picked(_ordered(by, entropies)[:count])
    chosen = {pick.position for pick in picks} | set((confidences > threshold).nonzero()[:, 0].tolist())
    for index in chosen:
        state[masked[index]] = tokens[index].view(torch.int32)


def _ordered(by, entropies):
    return entropies.sort(stable=True).indices.tolist() if by == ENTROPY else range(len(entropies))


def sum_norm(grid, x, change, weight, out, width, *, EPS, **_):
    total = x.view(-1, width).add_(change.view(-1, width)).float()
    normed = total * (total.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.float()
    out.copy_(normed.view(out.shape))


def rotate_heads(
    grid, qkv, q_weight, k_weight, cos, sin, keys, values, targets, key_scales, value_scales, *,
    EPS, HEADS, KV_HEADS, D, WIDTH, L, NORM, WRITE, **_,
):  # fmt: skip
    """Norms and rotations of queries and keys in place. With WRITE keys and values of final blocks go to pages."""
    flat = qkv.view(-1, HEADS + 2 * KV_HEADS, D)
    qk = flat[:, : HEADS + KV_HEADS].float()
    if NORM:
        weight = torch.cat([q_weight.float().expand(HEADS, -1), k_weight.float().expand(KV_HEADS, -1)])
        qk = qk * (qk.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight
    turned = qk[..., :WIDTH]
    angles = (table.float().reshape(-1, 1, WIDTH) for table in (cos, sin))
    turned = torch.addcmul(turned * next(angles), turned.roll(WIDTH // 2, -1), next(angles))
    flat[:, : HEADS + KV_HEADS] = torch.cat([turned, qk[..., WIDTH:]], -1).to(qkv.dtype)
    if WRITE:
        _, k, v = flat.split([HEADS, KV_HEADS, KV_HEADS], 1)
        if key_scales is not None:
            (k_8, k_scales), (v_8, v_scales) = round_heads(k), round_heads(v)
            write_kv((len(flat) // L,), k_scales, v_scales, key_scales, value_scales, targets, L=L)
            k.copy_(Rounded(k_8, k_scales).widened(qkv.dtype))
            v.copy_(Rounded(v_8, v_scales).widened(qkv.dtype))
            k, v = k_8, v_8
        write_kv((len(flat) // L,), k, v, keys, values, targets, L=L)


def silu_times(grid, gate_up, out, width, **_):
    gate, up = gate_up.view(-1, 2, width).float().unbind(1)
    out.copy_((torch.nn.functional.silu(gate) * up).view(out.shape))


def quantize_rows(grid, x, values, scales, *_, **__):
    scheme = scheme_named("w8a8" if values.dtype == torch.int8 else "fp8")
    numbers, row_scales = quantize_activations(x, scheme)
    values.copy_(numbers.view(values.dtype))
    scales.copy_(row_scales[:, 0])


def multiply(grid, x, x_scales, values, scales, out, ends, *_, EXPERTS, **__):
    stops = ends.tolist() if EXPERTS else [len(x)]
    for matrix, (first, stop) in enumerate(zip([0, *stops], stops, strict=False)):
        rows = slice(first, stop)
        bits = values.view(-1, *values.shape[-2:])[matrix].double()
        scale = bits.new_ones(len(bits), 1) if scales is None else scales.view(-1, *scales.shape[-2:])[matrix].double()
        groups = scale.shape[1]
        numbers = x[rows].double()
        total = numbers @ (bits.unflatten(1, (groups, -1)) * (scale[..., None] if groups > 1 else 1)).flatten(1).T
        if x_scales is not None:
            total = total.float() * x_scales[rows, None]
        out[rows] = (total if groups > 1 else total * scale[:, 0].float()).to(out.dtype)


KERNELS: dict[str, Callable[..., None]] = {
    kernel.__name__: kernel
    for kernel in (
        *(attend, write_kv, find_likeliest, sample, sum_norm, rotate_heads, silu_times),
        *(quantize_rows, multiply, keep_candidates, candidate_logits, choose_candidate),
        *(place_states, locate_positions, reveal_picks, begin_replay),
    )
}
