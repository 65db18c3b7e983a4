"""From logits to tokens and confidences, for all reads of a forward at once.

Confidence is the full-vocabulary softmax probability after temperature, before top-k and top-p.
At temperature > 0 the token is the Gumbel-argmax with noise that is a hash of (seed, absolute
position, tokens revealed in the block, token id): the same request meets the same noise in any batch,
on any replica and any device, in `speculative` as in `static`. What is left to differ is the rounding
of the logits, which depends on a batch's shape and matters in low precision.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.engine.forward.anchors import Candidates
from service.engine.forward.reads import Integers, Reads
from service.model.transfer import to_device_async

#: of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014; constants by Stafford)
_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def keep_allowed(logits: Tensor, reads: Reads, tokens: Tensor | None = None) -> None:
    """Sets the logits `[M, V]` of tokens that a read's mask does not allow to -inf, in place.

    With `tokens` `[M, C]` the logits are of these, `[M, C]`. What is read afterwards is of the allowed tokens alone.
    """
    masked = reads.having(reads.questions.masks)
    if not masked:
        return
    leftmost = reads.leftmost()
    masked = [(number, mask) for number, mask in masked if leftmost[number]]
    if not masked:
        return
    rows = to_device_async(np.array([number for number, _ in masked]), logits.device)
    words = to_device_async(np.stack([mask for _, mask in masked]), logits.device)
    bits = torch.arange(8, dtype=torch.uint8, device=logits.device)
    allowed = (words[:, :, None] >> bits & 1).flatten(1).bool()
    width = logits.shape[-1]
    allowed = allowed[:, :width] if tokens is None else allowed.gather(-1, tokens[rows])
    logits.index_copy_(0, rows, logits[rows].masked_fill(~allowed, -torch.inf))


def choose(
    logits: Tensor, reads: Reads, mask_token_id: int, candidates: Candidates | None = None
) -> tuple[Tensor, Tensor]:
    """logits `[M, V]`, one row a read -> tokens `[M]` (int64), confidences `[M]` (float32).

    The mask token is never chosen. With `candidates` of every row the logits, `[M, C]` then, are of these tokens alone,
    the mask not among them, and confidences leave the others what they weigh. `logits` may be overwritten.
    """
    scaled = scale(logits.float(), reads)
    total = scaled.logsumexp(-1)
    if candidates is not None:
        total = torch.logaddexp(total, candidates.others)
    sampled = np.flatnonzero(reads.sampled)
    scores = scaled.clone() if len(sampled) else scaled
    if candidates is None:
        scores[:, mask_token_id] = -torch.inf
    if len(sampled):
        scores = _perturb(_filter(scores, reads), reads, sampled, candidates.tokens if candidates else None)
    columns = scores.argmax(-1)
    confidences = _probability(scaled, columns, total)
    if candidates is not None:
        return candidates.tokens.gather(-1, columns[:, None])[:, 0], confidences
    if reads.chosen.all():
        return columns, confidences
    given = to_device_async(reads.token, columns.device)
    tokens = torch.where(given < 0, columns, given)
    return tokens, _probability(scaled, tokens, total)


def _probability(scaled: Tensor, columns: Tensor, total: Tensor) -> Tensor:
    """Of a column a row, `[M]`; `total`: the rows' logsumexp."""
    return (scaled.gather(-1, columns[:, None])[:, 0] - total).exp()


def entropies(logits: Tensor, reads: Reads) -> Tensor:
    """logits `[M, V]` -> entropies `[M]` in nats (float32) of what confidences are taken from."""
    parts: Tensor = torch.special.entr(scale(logits.float(), reads).softmax(-1))
    return parts.sum(-1)


def scale(logits: Tensor, reads: Reads) -> Tensor:
    """logits `[M, V]` over each read's temperature, `[M, V]`; the same tensor where all temperatures are 0 or 1."""
    temperatures = reads.temperature
    if (temperatures == 1.0).all():
        return logits
    return logits / to_device_async(temperatures, logits.device)[:, None]


def _filter(scores: Tensor, reads: Reads) -> Tensor:
    """Sets what top-k, then top-p of the rest, exclude to -inf; ties at the border stay in. `[M, V]` in place."""
    chosen = np.flatnonzero(reads.questions.filtered[reads.row])
    if not len(chosen):
        return scores
    vocabulary, asking, questions = scores.shape[-1], reads.row[chosen], reads.questions
    rows = to_device_async(chosen, scores.device)
    part = scores[rows]
    ordered = part.sort(dim=-1, descending=True).values
    counts = questions.top_k[asking]
    top_k = to_device_async(np.where(counts > 0, np.minimum(counts, vocabulary), vocabulary), scores.device)
    top_p = to_device_async(questions.top_p[asking], scores.device)
    outside = torch.arange(vocabulary, device=scores.device) >= top_k[:, None]
    probabilities = ordered.masked_fill(outside, -torch.inf).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    border = ordered.masked_fill(outside | (before >= top_p[:, None]), torch.inf).amin(-1, keepdim=True)
    scores[rows] = part.masked_fill(part < border, -torch.inf)
    return scores


def _perturb(scores: Tensor, reads: Reads, sampled: Integers, candidates: Tensor | None) -> Tensor:
    """Adds Gumbel noise to the rows that sample, `[M, V]`, or `[M, C]` for candidates, in place."""
    keys = to_device_async(noise_keys(reads.take(sampled)), scores.device)
    rows = to_device_async(sampled, scores.device)
    tokens = torch.arange(scores.shape[-1], device=scores.device) if candidates is None else candidates[rows]
    return scores.index_add_(0, rows, gumbel(keys, tokens))


def gumbel(keys: Tensor, tokens: Tensor) -> Tensor:
    """keys `[N, 2]` (32-bit words in int64), tokens `[V]` or `[N, V]` -> standard Gumbel noise `[N, V]`, float32."""
    first, second = keys.to(torch.int32).unsqueeze(-1).unbind(1)
    words = _mix((tokens * 0x9E3779B1).to(torch.int32) + first)
    words = _mix(words.bitwise_xor_(second))
    # the word without its sign, rounded once: the halves and 2^16 times the high one are exact
    word = torch.add(words & 0xFFFF, _shifted(words, 16).float(), alpha=2.0**16)
    return word.add_(0.5).mul_(-(2.0**-32)).clamp_(min=2.0**-24 - 1).log1p_().neg_().log_().neg_()


def _mix(words: Tensor) -> Tensor:
    """A 32-bit integer hash (Wellons' lowbias32), in place.

    On int32, whose products overflow to the same bits: half the memory of int64, and vectors can multiply them.
    """
    words.bitwise_xor_(_shifted(words, 16)).mul_(0x7FEB352D)
    words.bitwise_xor_(_shifted(words, 15)).mul_(0x846CA68B - 2**32)
    return words.bitwise_xor_(_shifted(words, 16))


def _shifted(words: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (words >> bits).bitwise_and_((1 << 32 - bits) - 1)


def noise_keys(reads: Reads) -> Integers:
    """The two 32-bit words that the noise of each read is hashed from, `[M, 2]`.

    Of its seed, its position and the tokens revealed in its block: splitmix64's function, once for each of them.
    """
    questions = reads.questions
    words = np.zeros(len(reads), np.uint64)
    for part in (questions.seed[reads.row], reads.position, questions.revealed[reads.row]):
        words = _mixed((words ^ part.astype(np.uint64)) + _STEP)
    return words.view(np.uint32).reshape(-1, 2).astype(np.int64)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit integer hash."""
    words = (words ^ words >> np.uint64(30)) * _FIRST
    words = (words ^ words >> np.uint64(27)) * _SECOND
    return words ^ words >> np.uint64(31)
