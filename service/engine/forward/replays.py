"""Chains: forwards that follow one another on the device, without the host between them.

Each reads the state after the picks of the one before. All are replays of one CUDA graph: the network, the tokens of
all positions, the reveal, and the next forward's anchors. One copy sends the tables, and one brings all results. A
forward of the backbone is a chain of one. MRP's drafts are chosen from candidates, if they have any; all other tokens
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
from service.engine.forward.row_states import rule_words
from service.engine.forward.rows import Candidates, ForwardOutput, Row
from service.engine.forward.sampler import predictions_of
from service.engine.forward.sampling_batch import SamplingBatch, SamplingMetadata
from service.model.transfer import SentTable

#: Hidden states `[R * L, H]` -> the table of all positions as of `SampleLogits`, `[R * L, 4]`.
SampleChained = Callable[[Tensor, "ChainBuffers"], Tensor]

#: The most forwards of a chain. The most positions of its rows, which the output head reads all: with more, a forward
#: takes longer than its launches.
MAX_FORWARDS, MAX_POSITIONS = 8, 256


class ChainTables(NamedTuple):
    """The tables of R rows on the host. `params` int32 `[R, 14]`: as of `state_kernels.reveal_chained`.

    `slots` `[R, L]`: the index of a position's candidates in `candidates`, 0 where it has none. None without drafts.
    """

    params: NDArray[np.int32]
    slots: NDArray[np.int64] | None = None
    candidates: Candidates | None = None

    @classmethod
    def of(cls, metadata: SamplingMetadata, counts: Sequence[int], drafts: DraftVocabulary | None) -> ChainTables:
        """`counts`: the forwards in which a row reveals."""
        from service.engine.forward.sampling_kernels import NOISY, RESTRICTED

        params = np.zeros((len(counts), 14), np.int32)
        params[:, 1], params[:, 2] = counts, metadata.temperature.view(np.int32)
        params[:, 3], params[:, 6] = NOISY * metadata.random, metadata.start
        if drafts is None:  # candidates may be any token
            params[:, 3] += RESTRICTED * metadata.restricted
        params[:, 4:6] = metadata.seed.view(np.int32).reshape(-1, 2)
        params[:, 7:12] = np.stack([rule_words(row.rule) for row in metadata.rows])
        params[:, 12:] = np.ones(1).view(np.int32)
        return cls(params) if drafts is None else cls(params, np.maximum(drafts.slots, 0), drafts.joined)


class SentChain(NamedTuple):
    """`ChainTables` that are sent, padded to a graph's rows."""

    params: SentTable
    slots: SentTable | None
    candidates: Candidates | None


@dataclass(frozen=True, slots=True)
class ChainBuffers:
    """The tensors that a graph of a chain reads and writes: R rows of L tokens, K forwards, C candidates.

    `params`: see `ChainTables`. `positions` int32 `[R * L, 6]`: the sampler's parameters. `candidates` `[R * L, C]`:
    each position's, for drafts. `values` `[K, R, L, 4]`: as of `reveal_chained`. `hidden` `[K, R, L, H]`: the next
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
    ) -> ChainBuffers:
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

    def load(self, chain: SentChain) -> None:
        """Gathers the candidates, after the tables are sent."""
        if self.candidates is None or chain.candidates is None or chain.slots is None:
            return
        slots = chain.slots.tensor.view(-1)
        torch.index_select(chain.candidates.tokens, 0, slots, out=self.candidates.tokens)
        torch.index_select(chain.candidates.other_weight, 0, slots, out=self.candidates.other_weight)

    def reveal(self, hidden: Tensor, states: Tensor, sample: SampleChained, mask_token_id: int) -> None:
        """Reveals the picks of a forward in the states `[R, L]`. hidden `[R, L, H]`."""
        from service.engine.forward import state_kernels

        if self.hidden is not None:
            self.hidden.index_copy_(0, self.params[0, :1].long(), hidden[None])
        length, grid = states.shape[1], (len(states),)
        sizes = {"L": length, "PAD": 1 << (length - 1).bit_length()}
        state_kernels.begin_chained[grid](states, self.params, self.positions, mask_token_id, **sizes)
        drawn = sample(hidden.flatten(0, 1), self)
        state_kernels.reveal_chained[grid](states, drawn, self.params, self.values, mask_token_id, **sizes)


class ChainResults(NamedTuple):
    """The results of K forwards over R rows.

    `values` `[K, R of the graph, L, 4]`: as of `reveal_chained`. `states` int32 `[R, L]`: those after the last forward.
    Both hold until the next replay. `hidden` `[K, R, L, H]`: the anchors.
    """

    values: Tensor
    hidden: Tensor
    states: Tensor


def can_chain(rows: Sequence[Row], counts: Sequence[int]) -> bool:
    """Whether rows can be a chain, if all or none of them draft from candidates: each is plain, or stores a block."""
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


def chain_predictions(batch: SamplingBatch, output: ForwardOutput, values: NDArray[np.float32]) -> list[Prediction]:
    """The predictions of one forward of a chain. values `[R, L, 4]`, see `reveal_chained`.

    Later forwards name the first one's positions, too: only the device knows their states (`Prediction.of_positions`).
    """
    counts = np.bincount(batch.row, minlength=len(values))
    numbers = np.arange(len(batch)) - (counts.cumsum() - counts)[batch.row]
    return predictions_of(batch, output, values[batch.row, numbers], {})
