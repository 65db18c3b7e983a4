"""Logits -> tokens, confidences, entropies and log-probabilities of all sampled positions of a forward at once.

Reveal rules read confidences and entropies: full-vocabulary softmax probabilities at temperature 1, or at the request's
temperature if it is higher. The token is drawn at the request's temperature, after min-p, top-k and top-p. Its
log-probability is the full softmax's at that temperature.
At temperature > 0 the token is the Gumbel-argmax with noise that is a hash of (seed, absolute position, tokens revealed
in the block, token id): the same in any batch, on any replica and any device, in `speculative` as in `static`. Only the
rounding of the logits may still differ.

`TritonLogitsSampler` reads logits once, in the type the model gives. Only positions with top-k or top-p are computed in
torch's operations there, too: they need the logits in order.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.engine.forward.rows import Candidates
from service.engine.forward.sampling_batch import Integers, SamplingBatch
from service.model import triton_support
from service.model.transfer import PackedTables, SentTable

#: The kernel: tokens of a part, warps, and the programs of a launch: six for each multiprocessor of an H100, on which
#: these were the fastest with noise (dev/lab/gpu.md). Results do not depend on the number of programs.
_KERNEL_PART, _WARPS, _PROGRAMS = 1024, 4, 792

#: the bits of a key's word
_WORD = 0xFFFFFFFF

#: constants of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014; Stafford's)
_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class SampleLogits(NamedTuple):
    """The planned sampling of positions. `params`: the kernel's parameters of the positions, None without a kernel.

    `sample`: logits `[M, V]` -> the tokens' bits, confidences, entropies (0 if not needed), log-probabilities, `[M, 4]`
    float32; logsumexp of the logits that rules read, `[M]`, or None. The tables are sent before.
    """

    sample: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    params: SentTable | None = None


class TorchLogitsSampler:
    """Samples in torch's operations, which make copies in float32. `keeps_logits`: whether the logits do not change."""

    def __init__(self, mask_token_id: int) -> None:
        self.mask_token_id, self.keeps_logits = mask_token_id, False

    def plan(self, batch: SamplingBatch, tables: PackedTables) -> SampleLogits:  # noqa: ARG002
        return SampleLogits(lambda logits: (sample(logits, batch, self.mask_token_id), None))


class TritonLogitsSampler:
    """Samples by the Triton kernel, which runs on CUDA and in Triton's interpreter."""

    def __init__(self, mask_token_id: int) -> None:
        from service.engine.forward import sampling_kernels

        self._kernels = sampling_kernels
        self.mask_token_id, self.keeps_logits = mask_token_id, True

    def plan(self, batch: SamplingBatch, tables: PackedTables) -> SampleLogits:
        filtered = np.flatnonzero(batch.metadata.filtered[batch.row])
        min_logit = batch.metadata.min_logit[batch.row] if len(filtered) else None
        params = tables.add(self._params(batch, min_logit))
        ranked = filtered[batch.metadata.ranked[batch.row[filtered]]] if len(filtered) else filtered
        indices = tables.add(ranked) if len(ranked) else None
        is_unknown = any(row.on_device for row in batch.metadata.rows)
        noise, min_p = bool(batch.random.any()), min_logit is not None and bool(min_logit.max() > -np.inf)
        unsampled = batch.metadata.unsampled

        def sample_logits(logits: Tensor) -> tuple[Tensor, Tensor | None]:
            out, total = self._by_kernel(logits, params.tensor, unsampled, noise=noise, min_p=min_p)
            if indices is not None:
                keys = noise_keys_of(params.tensor, indices.tensor) if is_unknown else None
                values = sample(logits[indices.tensor], batch.select(ranked), self.mask_token_id, keys=keys)
                out.index_copy_(0, indices.tensor, values)
            return out, total

        return SampleLogits(sample_logits, params)

    def sample_all(self, logits: Tensor, params: Tensor, unsampled: tuple[int, ...] = ()) -> Tensor:
        """logits `[M, V]` -> as `SampleLogits`, `[M, 4]`. `params` int32 `[M, 6]`: the kernel's, which it changes.

        `unsampled`: the model's tokens that positions with `RESTRICTED` may not choose.
        """
        return self._by_kernel(logits, params, unsampled, noise=True, min_p=False)[0]

    def _by_kernel(
        self, logits: Tensor, params: Tensor, unsampled: tuple[int, ...], *, noise: bool, min_p: bool
    ) -> tuple[Tensor, Tensor]:
        """All positions, without top-k and top-p. The kernel counts finished programs in `params`."""
        count, width = logits.shape
        parts = -(-width // _KERNEL_PART)
        out = torch.empty(count, 4, device=logits.device)
        numbers = 1 + self._kernels.PART_NUMBERS * parts
        work = torch.empty(count, numbers, dtype=torch.float32, device=logits.device)
        mask = self.mask_token_id
        sizes = width, logits.stride(0), mask, *(unsampled or (mask, mask))
        # at most one program for each part, about `_PROGRAMS` in all, with as many parts each
        parts_of_program = -(-parts // max(1, min(parts, _PROGRAMS // count)))
        grid = count, -(-parts // parts_of_program)
        if min_p:
            self._kernels.find_likeliest[grid](
                logits, params, work, *sizes, PART=_KERNEL_PART, PARTS=parts, num_warps=_WARPS
            )
        self._kernels.sample[grid](
            logits, params, work, out, *sizes, PART=_KERNEL_PART, PARTS=parts,
            PARTS_PAD=1 << (parts - 1).bit_length(), NOISE=noise, MIN_P=min_p, num_warps=_WARPS,
        )  # fmt: skip
        return out, work[:, 0]

    def _params(self, batch: SamplingBatch, min_logit: NDArray[np.float32] | None) -> NDArray[np.int32]:
        """The kernel's parameters of each position, `[M, 6]`. `min_logit` `[M]`: as in `SamplingMetadata`."""
        params = drawing_params(batch, self._kernels.NUM_PARAMS)
        params[:, 1] *= self._kernels.NOISY
        if batch.metadata.unsampled:
            params[:, 1] += self._kernels.RESTRICTED * batch.metadata.restricted[batch.row]
        params[:, 4] = batch.token
        if min_logit is not None:
            params[:, 5] = min_logit.view(np.int32)
        return params


#: samples tokens
LogitsSampler = TorchLogitsSampler | TritonLogitsSampler


def logits_sampler_for(mask_token_id: int, device: torch.device, dtype: torch.dtype) -> LogitsSampler:
    """The kernel where Triton is available on CUDA, with any attention backend."""
    kind = TritonLogitsSampler if triton_support.use_triton(device, dtype) else TorchLogitsSampler
    return kind(mask_token_id)


def apply_grammar_masks(logits: Tensor, batch: SamplingBatch, tokens: Tensor | None = None) -> None:
    """Sets the logits `[M, V]` of tokens that a position's mask does not allow to -inf, in place.

    `tokens` `[M, C]`: the tokens of the logits, then `[M, C]`. Confidences are shares of the allowed tokens alone.
    """
    if not (masked := batch.with_values(batch.metadata.masks)):
        return
    leftmost = batch.leftmost()
    if not (masked := [(index, mask) for index, mask in masked if leftmost[index]]):
        return
    tables = PackedTables(logits.device)
    rows = tables.add(np.array([index for index, _ in masked]))
    words = tables.add(np.stack([mask for _, mask in masked]))
    tables.send()
    bits = torch.arange(8, dtype=torch.uint8, device=logits.device)
    allowed = (words.tensor[:, :, None] >> bits & 1).flatten(1).bool()
    width = logits.shape[-1]
    allowed = allowed[:, :width] if tokens is None else allowed.gather(-1, tokens[rows.tensor])
    logits.index_copy_(0, rows.tensor, logits[rows.tensor].masked_fill(~allowed, -torch.inf))


def rule_logits(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """logits `[M, V]` over each position's `rule_temperature`; the same tensor where all are 1."""
    tables = PackedTables(logits.device)
    divide = plan_division(batch.rule_temperature, tables)
    tables.send()
    return divide(logits)


def plan_division(temperatures: NDArray[np.float32], tables: PackedTables) -> Callable[[Tensor], Tensor]:
    """Plans the division of logits `[M, V]` by temperatures `[M]`. Where all are 1, logits stay as they are."""
    if (temperatures == 1.0).all():
        return lambda logits: logits
    sent = tables.add(temperatures)
    return lambda logits: logits / sent.tensor[:, None]


def sample(
    logits: Tensor,
    batch: SamplingBatch,
    mask_token_id: int,
    candidates: Candidates | None = None,
    keys: Tensor | None = None,
) -> Tensor:
    """logits `[M, V]`, or `[M, C]` of candidates, -> as `SampleLogits`, `[M, 4]`. They may be overwritten.

    `keys` `[N, 2]`: the keys of the noise of all positions that have noise; None: they are computed here.
    """
    # entropies first: choosing tokens may overwrite the logits
    entropy = entropies(logits, batch) if batch.metadata.entropy else torch.zeros(len(batch), device=logits.device)
    tokens, confidences, logprobs = choose_tokens(logits, batch, mask_token_id, candidates, keys)
    return torch.stack([tokens.int().view(torch.float32), confidences, entropy, logprobs], dim=1)


def choose_tokens(
    logits: Tensor,
    batch: SamplingBatch,
    mask_token_id: int,
    candidates: Candidates | None = None,
    keys: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """logits `[M, V]`, a row for each position -> tokens `[M]` (int64), confidences and log-probabilities (float32).

    The mask token and `Row.unsampled` are never chosen. With `candidates` the logits are the candidates' logits
    `[M, C]`, without the mask token, confidences count the weight of all other tokens, and log-probabilities are 0.
    `logits` may be overwritten. `keys`: see `sample`.
    """
    tables, is_cold = PackedTables(logits.device), bool((batch.temperature < 1).any())
    draw, divide = _plan_draw(batch, tables, keys), plan_division(batch.rule_temperature, tables)
    divide_drawn = plan_division(batch.temperature, tables) if is_cold else None
    rescored = None if candidates is not None or batch.chosen.all() else tables.add(batch.token)
    tables.send()
    read = divide(logits.float())
    scaled = read if divide_drawn is None else divide_drawn(logits.float())
    total = read.logsumexp(-1)
    if candidates is not None:
        total, columns = torch.logaddexp(total, candidates.other_weight), draw(scaled, None, candidates.tokens)
        tokens, confidences = candidates.tokens.gather(-1, columns[:, None])[:, 0], _logprob(read, columns, total).exp()
        return tokens, confidences, torch.zeros_like(confidences)
    drawn_total = scaled.logsumexp(-1) if is_cold else total
    tokens = draw(scaled, mask_token_id, None)
    if rescored is not None:
        tokens = torch.where(rescored.tensor < 0, tokens, rescored.tensor)
    logprobs = _logprob(read, tokens, total)
    return tokens, logprobs.exp(), _logprob(scaled, tokens, drawn_total) if is_cold else logprobs


def plan_exclusion(batch: SamplingBatch, tables: PackedTables) -> Callable[[Tensor, int], None]:
    """Plans the exclusion of the mask token, and of `Row.unsampled`: sets their scores `[M, V]` to -inf, in place."""
    unsampled = batch.metadata.unsampled
    if unsampled:
        rows = tables.add(np.flatnonzero(batch.metadata.restricted[batch.row]))

    def exclude(scores: Tensor, mask_token_id: int) -> None:
        scores[:, mask_token_id] = -torch.inf
        for token in unsampled:
            scores[:, token].index_fill_(0, rows.tensor, -torch.inf)

    return exclude


def _plan_draw(
    batch: SamplingBatch, tables: PackedTables, keys: Tensor | None
) -> Callable[[Tensor, int | None, Tensor | None], Tensor]:
    """Plans the choice of tokens, with noise and filters of the positions that have them.

    -> a function of logits over the temperature `[M, V]`, the mask token or None, and the tokens of the columns `[M,
    V]` or None, to the column of each row that is chosen, `[M]`. Without noise the logits are overwritten.
    """
    random = np.flatnonzero(batch.random)
    is_random, exclude = len(random) > 0, plan_exclusion(batch, tables)
    if is_random:
        apply_filters = _plan_filters(batch, tables)
        noisy = tables.add(random)
        if keys is None:
            sent_keys = tables.add(noise_keys(batch.select(random)))

    def draw(scaled: Tensor, mask_token_id: int | None, candidates: Tensor | None) -> Tensor:
        scores = scaled.clone() if is_random else scaled
        if mask_token_id is not None:
            exclude(scores, mask_token_id)
        if is_random:
            apply_filters(scores)
            rows, width = noisy.tensor, scores.shape[-1]
            tokens = torch.arange(width, device=scores.device) if candidates is None else candidates[rows]
            scores.index_add_(0, rows, gumbel(sent_keys.tensor if keys is None else keys, tokens))
        return scores.argmax(-1)

    return draw


def _logprob(logits: Tensor, columns: Tensor, total: Tensor) -> Tensor:
    return logits.gather(-1, columns[:, None])[:, 0] - total


def entropies(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """logits `[M, V]` -> entropies `[M]` in nats (float32) of the full softmax, as for confidences."""
    terms: Tensor = torch.special.entr(rule_logits(logits.float(), batch).softmax(-1))
    return terms.sum(-1)


def _plan_filters(batch: SamplingBatch, tables: PackedTables) -> Callable[[Tensor], None]:
    """Plans min-p, then top-k, then top-p of the rest, for the positions that have them.

    -> a function that sets excluded scores `[M, V]` to -inf, in place; ties at the border stay.
    """
    metadata = batch.metadata
    filtered = np.flatnonzero(metadata.filtered[batch.row])
    if not len(filtered):
        return lambda _: None
    rows, indices = batch.row[filtered], tables.add(filtered)
    min_logit, is_ranked, counts = metadata.min_logit[rows], metadata.ranked[rows].any(), metadata.top_k[rows]
    min_logits = tables.add(min_logit) if (min_logit > -np.inf).any() else None
    if is_ranked:
        top_k = tables.add(np.where(counts > 0, counts, np.iinfo(np.int64).max))
        top_p = tables.add(metadata.top_p[rows])

    def apply(scores: Tensor) -> None:
        part = scores[indices.tensor]
        if min_logits is not None:
            threshold = part.amax(-1, keepdim=True) + min_logits.tensor[:, None]
            part = part.masked_fill_(part < threshold, -torch.inf)
        if is_ranked:
            part = _apply_top_k_top_p(part, top_k.tensor, top_p.tensor)
        scores[indices.tensor] = part

    return apply


def _apply_top_k_top_p(part: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """part `[N, V]` -> the scores that top-k and top-p `[N]` leave, -inf for others."""
    ordered = part.sort(dim=-1, descending=True).values
    outside = torch.arange(part.shape[-1], device=part.device) >= top_k[:, None]
    probabilities = ordered.masked_fill(outside, -torch.inf).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    border = ordered.masked_fill(outside | (before >= top_p[:, None]), torch.inf).amin(-1, keepdim=True)
    return part.masked_fill(part < border, -torch.inf)


def gumbel(keys: Tensor, tokens: Tensor) -> Tensor:
    """keys `[N, 2]` (32-bit words in int64), tokens `[V]` or `[N, V]` -> standard Gumbel noise `[N, V]`, float32."""
    first, second = keys.to(torch.int32).unsqueeze(-1).unbind(1)
    words = _mix((tokens * 0x9E3779B1).to(torch.int32) + first)
    words = _mix(words.bitwise_xor_(second))
    # the word without its sign, rounded once: both halves and 2^16 times the high half are exact
    word = torch.add(words & 0xFFFF, _shifted(words, 16).float(), alpha=2.0**16)
    return word.add_(0.5).mul_(-(2.0**-32)).clamp_(min=2.0**-24 - 1).log1p_().neg_().log_().neg_()


def _mix(words: Tensor) -> Tensor:
    """A 32-bit integer hash (Wellons' lowbias32), in place. On int32 products overflow to the same bits."""
    words.bitwise_xor_(_shifted(words, 16)).mul_(0x7FEB352D)
    words.bitwise_xor_(_shifted(words, 15)).mul_(0x846CA68B - 2**32)
    return words.bitwise_xor_(_shifted(words, 16))


def _shifted(words: Tensor, bits: int) -> Tensor:
    return (words >> bits).bitwise_and_((1 << 32 - bits) - 1)


def drawing_params(batch: SamplingBatch, width: int) -> NDArray[np.int32]:
    """`[M, width]`: the temperatures' bits, whether noise is added, the two words of its keys, then zeros."""
    params, random = np.zeros((len(batch), width), np.int32), batch.random
    params[:, 0], params[:, 1] = batch.temperature.view(np.int32), random
    if random.any():
        params[:, 2:4] = noise_keys(batch).astype(np.uint32).view(np.int32)
    return params


def noise_keys(batch: SamplingBatch) -> Integers:
    """The two 32-bit words from which each position's noise is hashed, `[M, 2]`.

    They hash the seed, the absolute position and the number of revealed tokens: splitmix64's function, once for each.
    In a causal model this number is 0, so that the noise does not depend on drafts or on the size of a page.
    """
    metadata = batch.metadata
    words = np.zeros(len(batch), np.uint64)
    revealed = np.zeros(len(batch), np.int64) if metadata.causal else metadata.revealed[batch.row]
    for part in (metadata.seed[batch.row], metadata.start[batch.row] + batch.position, revealed):
        words = _mixed((words ^ part.astype(np.uint64)) + _STEP)
    return words.view(np.uint32).reshape(-1, 2).astype(np.int64)


def noise_keys_of(params: Tensor, positions: Tensor) -> Tensor:
    """The keys of some positions' noise, `[N, 2]`. `params`: a table by `drawing_params` on the device."""
    return params[:, 2:4].index_select(0, positions).long() & _WORD


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ words >> np.uint64(30)) * _FIRST
    words = (words ^ words >> np.uint64(27)) * _SECOND
    return words ^ words >> np.uint64(31)
