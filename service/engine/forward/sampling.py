"""From logits to tokens and confidences, for all reads of a forward at once.

Confidence is the full-vocabulary softmax probability after temperature, before top-k and top-p.
At temperature > 0 the token is the Gumbel-argmax with noise that is a hash of (seed, absolute
position, tokens revealed in the block, token id): the same request meets the same noise in any batch,
on any replica and any device, in `speculative` as in `static`. What is left to differ is the rounding
of the logits, which depends on a batch's shape and matters in low precision.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.engine.request import Asked, SamplingParams
from service.model.transfer import send

#: lower temperatures sample like this one: their logits would not be finite
_COLDEST = 1e-6
#: a lower top_p would be 0 in float32, which leaves no token at all
_LEAST_TOP_P = torch.finfo(torch.float32).tiny


class Read(NamedTuple):
    """One position whose token is wanted.

    `slot`: row * block + position, in the forward. `token`: None to choose one, or the token whose
    probability is asked for. `position` is absolute, `revealed` counts the block's tokens. `entropy`: whether that of
    the distribution is wanted too. `mask`: the allowed tokens, a bit each, `[V / 8]`; None: all.
    `asked`: what else is wanted of the distribution.
    """

    slot: int
    position: int
    revealed: int
    sampling: SamplingParams
    token: int | None = None
    entropy: bool = False
    mask: NDArray[np.uint8] | None = None
    asked: Asked | None = None

    @property
    def filtered(self) -> bool:
        """Whether top-k or top-p leave tokens out."""
        return self.sampling.filtered


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that a position's is chosen from, int64 `[…, C]`, and the weight of all others, `[…]`.

    The weight is the logsumexp of their logits over the request's temperature, the mask token's included.
    """

    tokens: Tensor
    others: Tensor


def keep_allowed(logits: Tensor, reads: Sequence[Read], tokens: Tensor | None = None) -> None:
    """Sets the logits `[M, V]` of tokens that a read's mask does not allow to -inf, in place.

    With `tokens` `[M, C]` the logits are of these, `[M, C]`. What is read afterwards is of the allowed tokens alone.
    """
    masked = [number for number, read in enumerate(reads) if read.mask is not None]
    if not masked:
        return
    rows = send(np.array(masked), logits.device)
    words = send(np.stack([mask for read in reads if (mask := read.mask) is not None]), logits.device)
    bits = torch.arange(8, dtype=torch.uint8, device=logits.device)
    allowed = (words[:, :, None] >> bits & 1).flatten(1).bool()
    width = logits.shape[-1]
    allowed = allowed[:, :width] if tokens is None else allowed.gather(-1, tokens[rows])
    logits.index_copy_(0, rows, logits[rows].masked_fill(~allowed, -torch.inf))


def choose(
    logits: Tensor, reads: Sequence[Read], mask_token_id: int, candidates: Candidates | None = None
) -> tuple[Tensor, Tensor]:
    """logits `[M, V]`, one row a read -> tokens `[M]` (int64), confidences `[M]` (float32).

    The mask token is never chosen. With `candidates` of every row the logits, `[M, C]` then, are of these tokens alone,
    the mask not among them, and confidences leave the others what they weigh. `logits` may be overwritten.
    """
    scaled = scale(logits.float(), reads)
    total = scaled.logsumexp(-1)
    if candidates is not None:
        total = torch.logaddexp(total, candidates.others)
    sampled = any(read.sampling.temperature > 0 for read in reads)
    scores = scaled.clone() if sampled else scaled
    if candidates is None:
        scores[:, mask_token_id] = -torch.inf
    if sampled:
        scores = _perturb(_filter(scores, reads), reads, candidates.tokens if candidates else None)
    columns = scores.argmax(-1)
    confidences = _probability(scaled, columns, total)
    if candidates is not None:
        return candidates.tokens.gather(-1, columns[:, None])[:, 0], confidences
    if all(read.token is None for read in reads):
        return columns, confidences
    given = send(np.array([-1 if read.token is None else read.token for read in reads]), columns.device)
    tokens = torch.where(given < 0, columns, given)
    return tokens, _probability(scaled, tokens, total)


def _probability(scaled: Tensor, columns: Tensor, total: Tensor) -> Tensor:
    """Of a column a row, `[M]`; `total`: the rows' logsumexp."""
    return (scaled.gather(-1, columns[:, None])[:, 0] - total).exp()


def entropies(logits: Tensor, reads: Sequence[Read]) -> Tensor:
    """logits `[M, V]` -> entropies `[M]` in nats (float32) of what confidences are taken from."""
    parts: Tensor = torch.special.entr(scale(logits.float(), reads).softmax(-1))
    return parts.sum(-1)


def scale(logits: Tensor, reads: Sequence[Read]) -> Tensor:
    """logits `[M, V]` over each read's temperature, `[M, V]`; the same tensor where all temperatures are 0 or 1."""
    temperatures = [temperature(read.sampling) for read in reads]
    if all(temperature == 1.0 for temperature in temperatures):
        return logits
    return logits / send(np.array(temperatures, np.float32), logits.device)[:, None]


def temperature(sampling: SamplingParams) -> float:
    """What logits are divided by: 1 where nothing is sampled."""
    return max(sampling.temperature, _COLDEST) if sampling.temperature else 1.0


def _filter(scores: Tensor, reads: Sequence[Read]) -> Tensor:
    """Sets what top-k, then top-p of the rest, exclude to -inf; ties at the border stay in. `[M, V]` in place."""
    chosen = [index for index, read in enumerate(reads) if read.sampling.temperature > 0 and read.filtered]
    if not chosen:
        return scores
    vocabulary = scores.shape[-1]
    rows = send(np.array(chosen), scores.device)
    part = scores[rows]
    ordered = part.sort(dim=-1, descending=True).values
    counts = [min(reads[i].sampling.top_k or vocabulary, vocabulary) for i in chosen]
    top_k = send(np.array(counts), scores.device)
    limits = [max(p, _LEAST_TOP_P) if (p := reads[i].sampling.top_p) < 1 else torch.inf for i in chosen]
    top_p = send(np.array(limits, np.float32), scores.device)
    outside = torch.arange(vocabulary, device=scores.device) >= top_k[:, None]
    probabilities = ordered.masked_fill(outside, -torch.inf).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    border = ordered.masked_fill(outside | (before >= top_p[:, None]), torch.inf).amin(-1, keepdim=True)
    scores[rows] = part.masked_fill(part < border, -torch.inf)
    return scores


def _perturb(scores: Tensor, reads: Sequence[Read], candidates: Tensor | None) -> Tensor:
    """Adds Gumbel noise to the rows that sample, `[M, V]`, or `[M, C]` for candidates, in place."""
    chosen = [index for index, read in enumerate(reads) if read.sampling.temperature > 0]
    keys = send(np.array([noise_key(reads[index]) for index in chosen]), scores.device)
    rows = send(np.array(chosen), scores.device)
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


def noise_key(read: Read) -> tuple[int, int]:
    """The two 32-bit words that a read's noise is hashed from."""
    data = struct.pack("<qqq", read.sampling.seed, read.position, read.revealed)
    first, second = struct.unpack("<II", hashlib.blake2b(data, digest_size=8).digest())
    return first, second
