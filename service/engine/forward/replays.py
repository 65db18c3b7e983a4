"""Replays: forwards that follow one another on the device, without the host between them.

Each reads the state after the picks of the one before. All are replays of one CUDA graph: the network, the tokens of
all positions, the reveal, and the next forward's anchors. One copy sends the tables, and one brings all results. A
forward of the backbone is one replay. MRP's drafts are chosen from candidates, if they have any; all other tokens
are sampled over the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.decode.policy import Prediction
from service.engine.forward.draft_vocabulary import DraftVocabulary
from service.engine.forward.row_states import StateTable, row_params
from service.engine.forward.rows import Candidates, ForwardOutput, Row
from service.engine.forward.sampler import predictions_of
from service.engine.forward.sampling_batch import SamplingBatch, SamplingMetadata
from service.model.transfer import SentTable

#: Hidden states `[R * L, H]` -> the table of all positions as of `SampleLogits`, `[R * L, 4]`.
SampleAll = Callable[[Tensor, "ReplayBuffers"], Tensor]

#: The most replays at once. The most positions of their rows, which the output head reads all: with more, a forward
#: takes longer than its launches.
MAX_FORWARDS, MAX_POSITIONS = 8, 256


class ReplayTables(NamedTuple):
    """The tables of R rows on the host. `params` int32 `[R, 16]`: see `row_params`.

    `slots` `[R, L]`: the index of a position's candidates in `candidates`, 0 where it has none. None without drafts.
    """

    params: NDArray[np.int32]
    slots: NDArray[np.int64] | None = None
    candidates: Candidates | None = None

    @classmethod
    def of(cls, metadata: SamplingMetadata, counts: Sequence[int], drafts: DraftVocabulary | None) -> ReplayTables:
        """`counts`: the forwards in which a row reveals."""
        params = row_params(metadata, counts, any_token=drafts is not None)
        return cls(params) if drafts is None else cls(params, np.maximum(drafts.slots, 0), drafts.joined)


class SentReplays(NamedTuple):
    """`ReplayTables` that are sent, padded to a graph's rows."""

    params: SentTable
    slots: SentTable | None
    candidates: Candidates | None


@dataclass(frozen=True, slots=True)
class ReplayBuffers:
    """The tensors that a replayed graph reads and writes: R rows of L tokens, K forwards, C candidates.

    `params`: see `ReplayTables`. `positions` int32 `[R * L, 6]`: the sampler's parameters. `candidates` `[R * L, C]`:
    each position's, for drafts. `values` `[K, R, L, 4]`: as of `reveal_picks`. `hidden` `[K, R, L, H]`: the next
    anchors of each forward of MRP.
    """

    params: Tensor
    positions: Tensor
    candidates: Candidates | None
    values: Tensor
    hidden: Tensor | None

    @classmethod
    def like(
        cls, params: Tensor, length: int, candidates: Candidates | None = None, anchors: Tensor | None = None
    ) -> ReplayBuffers:
        """For blocks of `length` tokens. `params`: where the table will be. `candidates`: some of the same width.

        `anchors` `[R, L, H]`: MRP's.
        """
        count, device = len(params) * length, params.device
        positions = torch.zeros(count, 6, dtype=torch.int32, device=device)
        if candidates is None:
            positions[:, 4] = -1  # each token is chosen
        else:
            positions[:, 4:] = torch.arange(count, dtype=torch.int32, device=device)[:, None]
            tokens, weights = candidates.tokens, candidates.other_weight
            candidates = Candidates(tokens.new_zeros(count, tokens.shape[1]), weights.new_zeros(count))
        values = torch.zeros(MAX_FORWARDS, len(params), length, 4, device=device)
        hidden = None if anchors is None else anchors.new_zeros(MAX_FORWARDS, *anchors.shape)
        return cls(params, positions, candidates, values, hidden)

    def load(self, sent: SentReplays) -> None:
        """Gathers the candidates, after the tables are sent."""
        if self.candidates is None or sent.candidates is None or sent.slots is None:
            return
        slots = sent.slots.tensor.view(-1)
        torch.index_select(sent.candidates.tokens, 0, slots, out=self.candidates.tokens)
        torch.index_select(sent.candidates.other_weight, 0, slots, out=self.candidates.other_weight)

    def reveal(self, hidden: Tensor, tokens: Tensor, sample: SampleAll, states: StateTable) -> None:
        """Reveals the picks of a forward in its `tokens` `[R, L]` and in the state table. hidden `[R, L, H]`."""
        if self.hidden is not None:
            self.hidden.index_copy_(0, self.params[0, :1].long(), hidden[None])
        states.begin_replay(tokens, self.params, self.positions)
        states.reveal_replay(tokens, sample(hidden.flatten(0, 1), self), self.params, self.values)


class ReplayResults(NamedTuple):
    """The results of K forwards over R rows.

    `values`: waits for the copy of a table `[K, R of the graph, L, 4]`, as of `reveal_picks`, which has to begin before
    the next replays. `hidden` `[K, R, L, H]`: the anchors.
    """

    values: Callable[[], list[Tensor]]
    hidden: Tensor


def can_replay(rows: Sequence[Row], counts: Sequence[int]) -> bool:
    """Whether rows can be replays, if all or none of them draft from candidates: each is plain, or stores a block."""
    sampled = [row for row in rows if row.sampling is not None]
    if not sampled or len(rows) * len(rows[0].state.tokens) > MAX_POSITIONS:
        return False
    if max(counts) > MAX_FORWARDS and not all(row.drafts for row in sampled):
        return False
    return all(_is_plain(row) for row in sampled)


def _is_plain(row: Row) -> bool:
    """Whether only masked positions are read, by their logits as they are, without filters."""
    is_filtered = row.sampling is not None and row.sampling.draws_filtered
    return not (is_filtered or row.rescore or row.adjustments) and row.mask is None and row.logprobs is None


def replay_predictions(batch: SamplingBatch, output: ForwardOutput, values: NDArray[np.float32]) -> list[Prediction]:
    """The predictions of one replay. values `[R, L, 4]`, see `reveal_picks`.

    Later forwards name the first one's positions, too: only the device knows their states (`Prediction.of_positions`).
    """
    counts = np.bincount(batch.row, minlength=len(values))
    numbers = np.arange(len(batch)) - (counts.cumsum() - counts)[batch.row]
    return predictions_of(batch, output, values[batch.row, numbers], {})
