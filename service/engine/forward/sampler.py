"""The sampler: hidden states -> the token of each position, its probability, and the log-probabilities that are wanted.

Output tokens are sampled over the whole vocabulary. A draft may be sampled over a draft vocabulary: the top tokens of
each position by the backbone's last prediction of the block. Then only their rows of `lm_head` are multiplied. Over a
vocabulary of 151,936 the whole head takes the time of MRP's layers.
Knows tensors, rows and sampled positions; no requests, no modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.decode.block import Pick, PositionLogprobs, new_tuple
from service.decode.policy import Prediction
from service.engine.forward.logit_adjustments import adjust_logits
from service.engine.forward.logits_sampler import LogitsSampler, apply_grammar_masks, apply_temperature, sample
from service.engine.forward.partition import BatchPartition, join
from service.engine.forward.rows import Anchor, Candidates, ForwardOutput, Row, gathered
from service.engine.forward.sampling_batch import Integers, SamplingBatch
from service.engine.request import LogprobsRequest
from service.model.backbone import Backbone
from service.model.transfer import to_device_async, to_host_async

#: the largest total probability of a position's candidates, so that the weight of all others is finite
_MOST_SHARE = 1.0 - 2.0**-24


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
        batch = SamplingBatch.from_rows(rows, hidden.shape[1])
        drafts = DraftVocabulary.for_rows(rows, hidden, self._num_candidates)
        flat, collector = hidden.flatten(0, 1), LogprobsCollector(batch, self._mask)
        short = drafts.present[batch.row] if drafts is not None else np.zeros(len(batch), np.bool_)
        parts = self._sampled(batch, np.flatnonzero(~short), lambda part: self._full(flat, part, drafts, collector))
        if drafts is not None:
            parts += self._sampled(batch, np.flatnonzero(short), lambda part: self._short(flat, part, drafts))
        output = ForwardOutput(hidden) if drafts is None else drafts.output(hidden)
        copied, logprobs = _begin_copy(parts), collector.begin()
        return lambda: _predictions(batch, output, copied(), logprobs())

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
        logits = adjust_logits(logits, batch, self._mask)
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
        return sample(logits, batch, self._mask, Candidates(tokens, drafts.other_weight[positions]))


def _predictions(
    batch: SamplingBatch,
    output: ForwardOutput,
    values: NDArray[np.float64],
    logprobs: Mapping[int, PositionLogprobs],
) -> list[Prediction]:
    """The values `[M, 3]` of the positions -> a Prediction for each row. Rescored positions come last."""
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
    """The rescored positions by row. `first`: the index of the first rescored position."""
    rescored = dict[int, tuple[Pick, ...]]()
    rows, positions = batch.row[first:].tolist(), batch.position[first:].tolist()
    for row, *pick in zip(rows, positions, tokens[first:], confidences[first:], strict=True):
        rescored[row] = (*rescored.get(row, ()), Pick(*pick))
    return rescored


def _begin_copy(parts: Sequence[_Part]) -> Callable[[], NDArray[np.float64]]:
    """Begins one copy of all values to the CPU. -> waits for it and returns them in the batch's order, `[M, 3]`."""
    if not parts:
        return lambda: np.empty((0, 3))
    copied, indices = to_host_async(join([part.values for part in parts])), [part.indices for part in parts]

    def in_order() -> NDArray[np.float64]:
        values = copied().numpy()
        ordered = np.empty_like(values)
        ordered[np.concatenate(indices)] = values
        return ordered

    return in_order


# --- draft vocabulary and log-probabilities --------------------------------------------------------


class DraftVocabulary(NamedTuple):
    """The draft candidates of every position of a forward, `[R * L, …]`.

    `missing` `[R]`: whether a row's candidates are computed now. `present` `[R]`: whether the row already has them.
    """

    tokens: Tensor
    other_weight: Tensor
    missing: NDArray[np.bool_]
    present: NDArray[np.bool_]

    @classmethod
    def for_rows(cls, rows: Sequence[Row], hidden: Tensor, num_candidates: int) -> DraftVocabulary | None:
        """The candidates that rows already have, and space for missing candidates. None if no row drafts."""
        anchors = {i: row.anchor for i, row in enumerate(rows) if row.drafts and row.anchor is not None}
        anchors = {i: anchor for i, anchor in anchors.items() if anchor.has_candidates}
        present = np.zeros(len(rows), np.bool_)
        present[list(anchors)] = True
        drafting = np.array([row.drafts for row in rows]) & bool(num_candidates)
        if not (present.any() or drafting.any()):
            return None
        earlier = [_candidates(anchor.output) for anchor in anchors.values()]
        width = earlier[0].tokens.shape[-1] if earlier else num_candidates
        tokens = torch.zeros(*hidden.shape[:2], width, dtype=torch.long, device=hidden.device)
        other_weight = torch.zeros(*hidden.shape[:2], device=hidden.device)
        if anchors:
            indices = to_device_async(np.array(list(anchors)), hidden.device)
            tokens.index_copy_(0, indices, gathered(list(anchors.values()), lambda output: _candidates(output).tokens))
            other_weight.index_copy_(
                0, indices, gathered(list(anchors.values()), lambda output: _candidates(output).other_weight)
            )
        return cls(tokens.flatten(0, 1), other_weight.flatten(), drafting & ~present, present)

    def output(self, hidden: Tensor) -> ForwardOutput:
        """The forward's output with the candidates. `hidden`: `[R, L, H]`."""
        shape = hidden.shape[:2]
        candidates = Candidates(self.tokens.unflatten(0, shape), self.other_weight.unflatten(0, shape))
        return ForwardOutput(hidden, candidates, self.missing | self.present)

    def fill(
        self, batch: SamplingBatch, flat: Tensor, logits: Tensor, mask_token_id: int, total: Tensor | None = None
    ) -> None:
        """Sets missing candidates to the top tokens of `logits` `[M, V]` of the positions `flat` `[M]`.

        `total` `[M]`: the logits' logsumexp, with which no copy in float32 is needed.
        """
        missing = np.flatnonzero(self.missing[batch.row])
        if not len(missing):
            return
        indices, selected = to_device_async(missing, logits.device), batch.select(missing)
        scaled = logits[indices] if total is not None else apply_temperature(logits[indices].float(), selected)
        possible = scaled.clone() if total is None else scaled
        possible[:, mask_token_id] = -torch.inf
        highest, tokens = possible.topk(self.tokens.shape[1], sorted=False)
        self.tokens[flat[indices]] = tokens
        if total is None:
            other_weight = scaled.scatter(1, tokens, -torch.inf).logsumexp(-1)
        else:
            weight = total[indices]
            share = (apply_temperature(highest.float(), selected) - weight[:, None]).exp().sum(-1)
            other_weight = weight + torch.log1p(-share.clamp(max=_MOST_SHARE))
        self.other_weight[flat[indices]] = other_weight


def _candidates(output: ForwardOutput) -> Candidates:
    if output.candidates is None:
        raise AssertionError("a row is anchored on candidates of a forward that has none")
    return output.candidates


class LogprobsCollector:
    """Collects the log-probabilities that requests want: of a position's top tokens and of the tokens they name.

    They are of the full softmax of the adjusted logits at the request's temperature, over the tokens that a grammar
    allows. The mask token is not among the top tokens. `add` gets the logits of each group of positions, then `begin`
    copies the results.
    """

    def __init__(self, batch: SamplingBatch, mask_token_id: int) -> None:
        self._requests = batch.metadata.logprobs
        self._max_top = max((request.top_n for request in self._requests.values()), default=0)
        self._max_ids = max((len(request.token_ids) for request in self._requests.values()), default=0)
        self._mask = mask_token_id
        self._positions: list[tuple[int, LogprobsRequest]] = []
        self._parts: list[Tensor] = []

    def add(self, logits: Tensor, batch: SamplingBatch) -> None:
        """logits `[M, V]` of the positions, which are not changed."""
        requests = batch.with_values(self._requests)
        if not requests:
            return
        indices = np.array([index for index, _ in requests])
        selected = batch.select(indices)
        scores = apply_temperature(logits[to_device_async(indices, logits.device)].float(), selected).log_softmax(-1)
        tokens = np.zeros((len(requests), self._max_ids), np.int64)
        for row, (_, request) in zip(tokens, requests, strict=True):
            row[: len(request.token_ids)] = request.token_ids
        by_id = scores.gather(-1, to_device_async(tokens, logits.device))
        scores[:, self._mask] = -torch.inf
        highest, top = scores.topk(min(self._max_top, scores.shape[-1]))
        self._parts.append(torch.cat([by_id.double(), highest.double(), top.double()], dim=1))
        self._positions += zip(selected.flat.tolist(), (request for _, request in requests), strict=True)

    def begin(self) -> Callable[[], Mapping[int, PositionLogprobs]]:
        """Begins the copy to the host. -> waits for it and returns the log-probabilities by `SamplingBatch.flat`."""
        if not self._parts:
            return dict
        copied = to_host_async(join(self._parts))
        return lambda: {
            flat: self._logprobs(values, request)
            for (flat, request), values in zip(self._positions, copied().tolist(), strict=True)
        }

    def _logprobs(self, values: list[float], request: LogprobsRequest) -> PositionLogprobs:
        by_id, top = values[: self._max_ids], values[self._max_ids :]
        count = len(top) // 2
        pairs = [(int(token), score) for score, token in zip(top[:count], top[count:], strict=True)]
        possible = [(token, score) for token, score in pairs[: request.top_n] if score > -math.inf]
        return PositionLogprobs(tuple(possible), tuple(by_id[: len(request.token_ids)]))
