"""The sampler: hidden states -> the token of each position and its probability.

Output tokens are sampled over the whole vocabulary. A draft may be sampled over a draft vocabulary: the likeliest
tokens of each position by the backbone's last prediction of the block, so that only their rows of `lm_head` are
multiplied. Over a vocabulary of 151,936 the whole head costs as much as MRP's layers.
Knows tensors, rows and sampled positions; no requests, no modes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.decode.block import Pick, PositionLogprobs, new_tuple
from service.decode.policy import Prediction
from service.engine.forward.draft_vocabulary import DraftVocabulary
from service.engine.forward.logits_sampler import LogitsSampler, apply_grammar_masks, sample
from service.engine.forward.logprobs import LogprobsCollector
from service.engine.forward.partition import BatchPartition, join
from service.engine.forward.rows import Anchor, Candidates, ForwardOutput, Row
from service.engine.forward.sampling_batch import Integers, SamplingBatch
from service.model.backbone import Backbone
from service.model.transfer import to_device_async, to_host_async


class _Part(NamedTuple):
    """Sampled positions: their indices, and token, confidence and entropy of each, `[M, 3]`, on the device."""

    indices: Integers
    values: Tensor


class Sampler:
    """Samples over a backbone's `lm_head`. `num_candidates`: the size of a position's draft vocabulary, 0: none."""

    def __init__(
        self, backbone: Backbone, logits_sampler: LogitsSampler, partition: BatchPartition, num_candidates: int
    ) -> None:
        self._backbone, self._logits_sampler, self._partition = backbone, logits_sampler, partition
        self._mask = logits_sampler.mask_token_id
        self._num_candidates = min(num_candidates, len(backbone.head) - 1)

    def begin(self, rows: Sequence[Row], hidden: Tensor) -> Callable[[], list[Prediction]]:
        """hidden `[R, L, H]`; only sampled positions get logits. Does not wait for the device."""
        batch = SamplingBatch.of(rows, hidden.shape[1])
        drafts = DraftVocabulary.of(rows, hidden, self._num_candidates)
        flat, collector = hidden.flatten(0, 1), LogprobsCollector(batch, self._mask)
        short = drafts.present[batch.row] if drafts is not None else np.zeros(len(batch), np.bool_)
        parts = self._sampled(batch, np.flatnonzero(~short), lambda part: self._full(flat, part, drafts, collector))
        if drafts is not None:
            parts += self._sampled(batch, np.flatnonzero(short), lambda part: self._short(flat, part, drafts))
        output = ForwardOutput(hidden) if drafts is None else drafts.output(hidden)
        copied, logprobs = _begin_copy(parts), collector.begin()
        return lambda: _predictions(batch, output, _in_order(parts, copied().numpy()), logprobs())

    def _sampled(
        self, batch: SamplingBatch, indices: Integers, sample_part: Callable[[SamplingBatch], Tensor]
    ) -> list[_Part]:
        """The positions at these indices, sampled on the device; one part, or none."""
        if not len(indices):
            return []
        groups = self._partition.positions(batch.select(indices) if len(indices) < len(batch) else batch)
        values = join([sample_part(group.members)[: len(group.indices)] for group in groups])
        return [_Part(indices[np.concatenate([group.indices for group in groups])], values)]

    def _full(
        self, flat: Tensor, batch: SamplingBatch, drafts: DraftVocabulary | None, collector: LogprobsCollector
    ) -> Tensor:
        """flat `[R * L, H]` -> tokens, confidences, entropies (0 if not needed), `[M, 3]`, float64. Fills `drafts`."""
        positions = to_device_async(batch.flat, flat.device)
        logits = self._backbone.logits(flat[positions])
        apply_grammar_masks(logits, batch)
        collector.add(logits, batch)
        if not self._logits_sampler.keeps_logits and drafts is not None:
            drafts.fill(batch, positions, logits, self._mask)
        values, total = self._logits_sampler.sample(logits, batch)
        if total is not None and drafts is not None:
            drafts.fill(batch, positions, logits, self._mask, total)
        return values

    def _short(self, flat: Tensor, batch: SamplingBatch, drafts: DraftVocabulary) -> Tensor:
        """As `_full`, over the draft candidates alone."""
        positions = to_device_async(batch.flat, flat.device)
        tokens = drafts.tokens[positions]
        logits = torch.einsum("mh,mch->mc", flat[positions], self._backbone.head[tokens])
        apply_grammar_masks(logits, batch, tokens)
        return sample(logits, batch, self._mask, Candidates(tokens, drafts.others[positions]))


def _predictions(
    batch: SamplingBatch,
    output: ForwardOutput,
    values: NDArray[np.float64],
    logprobs: Mapping[int, PositionLogprobs],
) -> list[Prediction]:
    """The values `[M, 3]` of the positions -> a Prediction for each row. Rescored positions are the last ones."""
    rows, length = batch.metadata.rows, batch.metadata.length
    chosen = int(np.count_nonzero(batch.chosen))
    ends = np.bincount(batch.row[:chosen], minlength=len(rows)).cumsum().tolist()
    positions, tokens = tuple(batch.position[:chosen].tolist()), tuple(values[:, 0].astype(np.int64).tolist())
    confidences = tuple(values[:, 1].tolist())
    entropies = tuple(values[:, 2].tolist()) if batch.metadata.entropy else ()
    rescored = _rescored(batch, tokens, confidences, chosen)
    predictions, start = list[Prediction](), 0
    for index, (row, end) in enumerate(zip(rows, ends, strict=True)):
        masked = positions[start:end]
        predictions.append(
            new_tuple(
                Prediction,
                (
                    masked,
                    tokens[start:end],
                    confidences[start:end],
                    rescored.get(index, ()),
                    new_tuple(Anchor, (output, index)),
                    entropies[start:end] if row.entropy else (),
                    [logprobs.get(index * length + position) for position in masked] if logprobs else (),
                ),
            )
        )
        start = end
    return predictions


def _rescored(
    batch: SamplingBatch, tokens: Sequence[int], confidences: Sequence[float], first: int
) -> dict[int, tuple[Pick, ...]]:
    """The rescored positions by row. `first`: the index of the first of them."""
    rescored = dict[int, tuple[Pick, ...]]()
    rows, positions = batch.row[first:].tolist(), batch.position[first:].tolist()
    for row, *pick in zip(rows, positions, tokens[first:], confidences[first:], strict=True):
        rescored[row] = (*rescored.get(row, ()), Pick(*pick))
    return rescored


def _begin_copy(parts: Sequence[_Part]) -> Callable[[], Tensor]:
    """All in one copy to the CPU, `[M, 3]`."""
    return (
        to_host_async(join([part.values for part in parts]))
        if parts
        else lambda: torch.empty(0, 3, dtype=torch.float64)
    )


def _in_order(parts: Sequence[_Part], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values `[M, 3]` of the parts, in the order of the batch."""
    if not parts:
        return values
    ordered = np.empty_like(values)
    ordered[np.concatenate([part.indices for part in parts])] = values
    return ordered
