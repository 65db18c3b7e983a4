"""The sampler: hidden states -> the token of each position, its probability, and the log-probabilities that are wanted.

Output tokens are sampled over the whole vocabulary. A draft may be sampled over a draft vocabulary, so that only its
rows of `lm_head` are multiplied: over a vocabulary of 151,936 the whole head takes the time of MRP's layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from service.decode.block import Pick, PositionLogprobs
from service.decode.policy import Prediction
from service.engine.forward.draft_vocabulary import DraftVocabulary, SamplePart
from service.engine.forward.logit_adjustments import adjust_logits
from service.engine.forward.logits_sampler import LogitsSampler, apply_grammar_masks, plan_division, plan_exclusion
from service.engine.forward.partition import BatchPartition, join
from service.engine.forward.pending import Pending, done
from service.engine.forward.row_states import PlannedStates, StateTable
from service.engine.forward.rows import Anchor, ForwardOutput, Row
from service.engine.forward.sampling_batch import Integers, SamplingBatch
from service.engine.request import LogprobsRequest
from service.model.checkpoint import Checkpoint
from service.model.transfer import HostCopies, PackedTables


class _Part(NamedTuple):
    """The planned sampling of positions. `indices`: their indices in the batch. `sample` may add padding."""

    indices: Integers
    sample: SamplePart


class Sampler:
    """Samples over a backbone's `lm_head`. `num_candidates`: the size of a position's draft vocabulary, 0: none."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        logits_sampler: LogitsSampler,
        partition: BatchPartition,
        num_candidates: int,
        states: StateTable,
    ) -> None:
        self._backbone, self._logits_sampler, self._partition = checkpoint.backbone, logits_sampler, partition
        self._states, self._mask = states, logits_sampler.mask_token_id
        self._sub_block, self._draft_masks = checkpoint.config.sub_block_size, checkpoint.config.draft_masks
        # with sub-blocks a draft may stand at a position that the backbone has not read, so there are no candidates
        self._num_candidates = 0 if self._sub_block else min(num_candidates, len(self._backbone.head) - 1)

    def plan(self, rows: Sequence[Row], tables: PackedTables) -> PlannedSampling:
        length = len(rows[0].state.tokens)
        batch = SamplingBatch.from_rows(rows, length, self._sub_block, self._draft_masks)
        drafts = DraftVocabulary.for_rows(rows, length, self._num_candidates, self._mask)
        collector = LogprobsCollector(batch, self._mask)
        is_short = np.zeros(len(batch), np.bool_) if drafts is None else drafts.present[batch.row]
        kernels, states = self._logits_sampler.keeps_logits, None
        if kernels and len(batch):
            states = self._states.plan(batch, tables)
        full_groups = self._groups(batch, np.flatnonzero(~is_short))
        parts = [_Part(at, self._full(of, tables, drafts, collector, states)) for at, of in full_groups]
        if drafts is not None:
            head = self._backbone.head
            for at, of in self._groups(batch, np.flatnonzero(is_short)):
                parts.append(_Part(at, drafts.plan_sample(of, tables, head, states, kernels=kernels)))
        planned = PlannedSampling(batch, parts, drafts, collector)
        if states is not None:
            planned.reveal = states.plan_reveal(planned.indices, tables)
        elif not kernels and any(row.line for row in rows):
            planned.reveal_by_rules = self._states.reveal_by_rules
        return planned

    def _groups(self, batch: SamplingBatch, indices: Integers) -> list[tuple[Integers, SamplingBatch]]:
        if not len(indices):
            return []
        members = batch if len(indices) == len(batch) else batch.select(indices)
        return [(indices[group.indices], group.members) for group in self._partition.positions(members)]

    def _full(
        self,
        batch: SamplingBatch,
        tables: PackedTables,
        drafts: DraftVocabulary | None,
        collector: LogprobsCollector,
        states: PlannedStates | None,
    ) -> SamplePart:
        positions = tables.add(batch.flat.astype(np.int32))
        (sample, params), collect = self._logits_sampler.plan(batch, tables), collector.plan(batch, tables)
        fill = None if drafts is None else drafts.plan_fill(batch, tables)
        locate = None if params is None or states is None else states.plan_locate(batch, positions, params, tables)

        def sample_part(flat: Tensor) -> Tensor:
            if locate is not None:
                locate()
            logits = self._backbone.logits(flat.index_select(0, positions.tensor))
            apply_grammar_masks(logits, batch)
            logits = adjust_logits(logits, batch, self._mask)
            if collect is not None:
                collect(logits)
            if fill is not None and not self._logits_sampler.keeps_logits:
                fill(logits, None)
            values, total = sample(logits)
            if fill is not None and total is not None:
                fill(logits, total)
            return values

        return sample_part


class PlannedSampling:
    """The planned sampling of a forward's rows. Its tables are sent before it begins.

    `reveal`: reveals picks in the state table by the values `[M, 4]`. `reveal_by_rules`: does so where no kernel does.
    """

    reveal: Callable[[Tensor], None] | None = None
    reveal_by_rules: Callable[[Sequence[Row], Sequence[Prediction]], None] | None = None

    def __init__(
        self, batch: SamplingBatch, parts: Sequence[_Part], drafts: DraftVocabulary | None, collector: LogprobsCollector
    ) -> None:
        self._batch, self._parts, self._drafts, self._collector = batch, parts, drafts, collector

    @cached_property
    def indices(self) -> Integers:
        """The index in the batch of each row of the parts' values."""
        return np.concatenate([part.indices for part in self._parts])

    def begin(self, hidden: Tensor, copies: HostCopies) -> Pending:
        """Begins without waiting for the device. hidden `[R, L, H]`. `copies`: get the results."""
        flat = hidden.flatten(0, 1)
        values = [part.sample(flat)[: len(part.indices)] for part in self._parts]
        tables = [join(parts) for parts in (values, self._collector.parts) if parts]
        output = ForwardOutput(hidden) if self._drafts is None else self._drafts.output(hidden)
        copied = copies.add(tables)
        if self.reveal is not None:  # last: a forward that has no memory reveals nothing
            self.reveal(tables[0])

        def predictions() -> list[Prediction]:
            arrived = iter(copied())
            table = np.empty((0, 4), np.float32)
            if values:
                table = next(arrived).numpy()
            if len(values) > 1:
                table = table[self.indices.argsort()]
            logprobs = self._collector.logprobs(next(arrived)) if self._collector.parts else {}
            return predictions_of(self._batch, output, table, logprobs)

        if self.reveal_by_rules is not None:
            results = predictions()
            self.reveal_by_rules(self._batch.metadata.rows, results)
            return done(results)
        return Pending([Anchor(output, index) for index in range(len(hidden))], predictions)


def predictions_of(
    batch: SamplingBatch, output: ForwardOutput, values: NDArray[np.float32], logprobs: Mapping[int, PositionLogprobs]
) -> list[Prediction]:
    """The values `[M, 4]` of the positions -> a Prediction for each row. Rescored positions come last."""
    rows, length, shift = batch.metadata.rows, batch.metadata.length, batch.metadata.shift
    chosen = int(np.count_nonzero(batch.chosen))
    ends = np.bincount(batch.row[:chosen], minlength=len(rows)).cumsum().tolist()
    positions, tokens = tuple(batch.position[:chosen].tolist()), tuple(values.view(np.int32)[:, 0].tolist())
    confidences = tuple(values[:, 1].tolist())
    entropies = tuple(values[:, 2].tolist()) if batch.metadata.entropy else ()
    cold = (batch.metadata.temperature < 1).tolist()  # elsewhere a confidence is the token's probability
    token_logprobs = tuple(values[:, 3].tolist()) if any(cold) else ()
    rescored = _rescored(batch, tokens, confidences, chosen) if chosen < len(batch) else {}
    spans = [*pairwise((0, *ends))]
    predictions = [
        Prediction(positions[start:end], tokens[start:end], confidences[start:end], handle=Anchor(output, index))
        for index, (start, end) in enumerate(spans)
    ]
    if not (rescored or entropies or logprobs or token_logprobs):
        return predictions
    return [
        replace(
            prediction,
            rescored=rescored.get(index, ()),
            entropies=entropies[start:end] if rows[index].entropy else (),
            logprobs=[logprobs.get(index * length + position - shift) for position in prediction.positions]
            if logprobs
            else (),
            token_logprobs=token_logprobs[start:end] if cold[index] else (),
        )
        for index, (prediction, (start, end)) in enumerate(zip(predictions, spans, strict=True))
    ]


def _rescored(
    batch: SamplingBatch, tokens: Sequence[int], confidences: Sequence[float], first: int
) -> dict[int, tuple[Pick, ...]]:
    rescored = dict[int, tuple[Pick, ...]]()
    rows, positions = batch.row[first:].tolist(), batch.position[first:].tolist()
    for row, *pick in zip(rows, positions, tokens[first:], confidences[first:], strict=True):
        rescored[row] = (*rescored.get(row, ()), Pick(*pick))
    return rescored


class LogprobsCollector:
    """Collects the log-probabilities that requests want: of a position's top tokens and of the tokens they name.

    They are of the full softmax of the adjusted logits at the request's temperature, over the tokens that a grammar
    allows. The mask token and `Row.unsampled` are not among the top ones. `parts`: the results on the device, of each
    group of positions.
    """

    def __init__(self, batch: SamplingBatch, mask_token_id: int) -> None:
        self._requests = batch.metadata.logprobs
        self._max_top = max((request.top_n for request in self._requests.values()), default=0)
        self._max_ids = max((len(request.token_ids) for request in self._requests.values()), default=0)
        self._mask = mask_token_id
        self._positions: list[tuple[int, LogprobsRequest]] = []
        self.parts: list[Tensor] = []

    def plan(self, batch: SamplingBatch, tables: PackedTables) -> Callable[[Tensor], None] | None:
        """Plans a group of positions. -> a function of their logits `[M, V]`, which it does not change; or None."""
        requests = batch.with_values(self._requests)
        if not requests:
            return None
        indices = np.array([index for index, _ in requests])
        selected = batch.select(indices)
        ids = np.zeros((len(requests), self._max_ids), np.int64)
        for row, (_, request) in zip(ids, requests, strict=True):
            row[: len(request.token_ids)] = request.token_ids
        sent_indices, sent_ids = tables.add(indices), tables.add(ids)
        divide, is_cold = plan_division(selected.temperature, tables), bool((selected.temperature < 1).any())
        exclude = plan_exclusion(selected, tables)
        divide_read = plan_division(selected.rule_temperature, tables) if is_cold else divide
        self._positions += zip(selected.flat.tolist(), (request for _, request in requests), strict=True)

        def collect(logits: Tensor) -> None:
            values = logits[sent_indices.tensor].float()
            scores = divide(values).log_softmax(-1)
            by_id = scores.gather(-1, sent_ids.tensor)
            exclude(scores, self._mask)
            highest, top = scores.topk(min(self._max_top, scores.shape[-1]))
            read = divide_read(values).log_softmax(-1).gather(-1, top) if is_cold else highest
            self.parts.append(torch.cat([by_id, top.int().view(torch.float32), highest, read.exp()], dim=1))

        return collect

    def logprobs(self, results: Tensor) -> Mapping[int, PositionLogprobs]:
        """The log-probabilities by `SamplingBatch.flat`. `results`: all parts on the host."""
        return {
            flat: self._position_logprobs(values, request)
            for (flat, request), values in zip(self._positions, results.numpy(), strict=True)
        }

    def _position_logprobs(self, values: NDArray[np.float32], request: LogprobsRequest) -> PositionLogprobs:
        by_id, (tokens, scores, confidences) = values[: self._max_ids], values[self._max_ids :].reshape(3, -1)
        possible = int(np.count_nonzero(scores[: request.top_n] > -math.inf))  # in descending order
        return PositionLogprobs(
            tuple(zip(tokens.view(np.int32)[:possible].tolist(), scores[:possible].tolist(), strict=True)),
            tuple(by_id[: len(request.token_ids)].tolist()),
            tuple(confidences[:possible].tolist()),
        )
