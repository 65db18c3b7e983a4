"""Chains of drafts: forwards of MRP that follow one another on the device, without the host between them.

Each reads the state after the rule's picks of the one before. All are replays of one CUDA graph: MRP, the logits of the
draft candidates, their choice, the reveal, and the next forward's anchors. One copy sends their tables, and one copy
brings their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.decode.policy import Prediction
from service.engine.forward.draft_vocabulary import DraftVocabulary, candidate_logits
from service.engine.forward.row_states import rule_words
from service.engine.forward.rows import Anchor, Candidates, ForwardOutput, Row
from service.engine.forward.sampling_batch import SamplingMetadata
from service.model.transfer import SentTable

#: The most forwards of a chain. The most positions of its rows: with more, a forward takes longer than its launches.
MAX_FORWARDS, MAX_POSITIONS = 8, 256


class ChainTables(NamedTuple):
    """The tables of R rows on the host. `params` int32 `[R, 12]`: as of `candidate_kernels.reveal_drafts`.

    `slots` `[R, L]`: the index of a position's candidates in `candidates`, 0 where it has none.
    """

    params: NDArray[np.int32]
    slots: NDArray[np.int64]
    candidates: Candidates

    @classmethod
    def of(cls, rows: Sequence[Row], drafts: DraftVocabulary) -> ChainTables:
        metadata = SamplingMetadata(rows, len(rows[0].state.tokens))
        params = np.zeros((len(rows), 12), np.int32)
        params[:, 1], params[:, 2] = metadata.temperature.view(np.int32), metadata.random
        params[:, 3:5], params[:, 5] = metadata.seed.view(np.int32).reshape(-1, 2), metadata.start
        params[:, 6:11] = np.stack([rule_words(row.rule) for row in rows])
        return cls(params, np.maximum(drafts.slots, 0), drafts.joined)


class SentChain(NamedTuple):
    """`ChainTables` that are sent, padded to a graph's rows."""

    params: SentTable
    slots: SentTable
    candidates: Candidates


@dataclass(frozen=True, slots=True)
class ChainBuffers:
    """The tensors that a graph of a chain reads and writes: R rows of L tokens, K forwards, C candidates.

    `params`: see `ChainTables`. `positions` int32 `[R * L, 6]`: each position's slot and its index, which are the same.
    `candidates` `[R * L, C]`: each position's candidates. `values` `[K, R, L, 4]`: as of `reveal_drafts`. `hidden` `[K,
    R, L, H]`: the next anchors of each forward.
    """

    params: Tensor
    positions: Tensor
    candidates: Candidates
    values: Tensor
    hidden: Tensor

    @classmethod
    def like(cls, params: Tensor, candidates: Candidates, anchors: Tensor) -> ChainBuffers:
        """For anchors `[R, L, H]`. `params`: where the table will be. `candidates`: some of as many tokens."""
        count = anchors.shape[0] * anchors.shape[1]
        positions = torch.arange(count, dtype=torch.int32, device=anchors.device)[:, None].repeat(1, 6)
        tokens, weights = candidates.tokens, candidates.other_weight
        return cls(
            params,
            positions,
            Candidates(tokens.new_zeros(count, tokens.shape[1]), weights.new_zeros(count)),
            torch.zeros(MAX_FORWARDS, *anchors.shape[:2], 4, device=anchors.device),
            anchors.new_zeros(MAX_FORWARDS, *anchors.shape),
        )

    def load(self, chain: SentChain) -> None:
        """Gathers the candidates, after the tables are sent."""
        slots = chain.slots.tensor.view(-1)
        torch.index_select(chain.candidates.tokens, 0, slots, out=self.candidates.tokens)
        torch.index_select(chain.candidates.other_weight, 0, slots, out=self.candidates.other_weight)

    def reveal(self, hidden: Tensor, states: Tensor, head: Tensor, mask_token_id: int) -> None:
        """Reveals the picks of a forward in the states `[R, L]`. hidden `[R, L, H]`, head `[V, H]`."""
        from service.engine.forward import candidate_kernels

        self.hidden.index_copy_(0, self.params[0, :1].long(), hidden[None])
        logits = candidate_logits(hidden.flatten(0, 1), head, self.candidates, self.positions)
        width, length = logits.shape[1], states.shape[1]
        candidate_kernels.reveal_drafts[len(states),](
            logits, self.candidates.tokens, self.candidates.other_weight, states, self.params, self.values,
            mask_token_id,
            C=width, C_PAD=1 << (width - 1).bit_length(), L=length, PAD=1 << (length - 1).bit_length(),
        )  # fmt: skip


def can_chain(rows: Sequence[Row], drafts: DraftVocabulary | None) -> bool:
    """Whether rows of MRP can be a chain: each drafts from candidates by a rule alone, or stores a finished block."""
    if drafts is None or drafts.missing.any() or len(rows) * len(rows[0].state.tokens) > MAX_POSITIONS:
        return False
    return all(
        (row.rule is not None and present and not row.sampling.filtered) if row.sampling is not None else row.writes_kv
        for row, present in zip(rows, drafts.present.tolist(), strict=True)
    )


def chain_predictions(rows: Sequence[Row], output: ForwardOutput, values: NDArray[np.float32]) -> list[Prediction]:
    """The predictions of one forward of a chain. values `[R, L, 4]`, see `reveal_drafts`.

    Later forwards name the first one's positions, too: only the device knows their states (`Prediction.of_positions`).
    """
    tokens, numbers = values.view(np.int32)[..., 0].tolist(), values[..., 1:3].transpose(2, 0, 1).tolist()
    predictions = list[Prediction]()
    for index, row in enumerate(rows):
        masked = row.state.masked
        count, (confidences, entropies) = len(masked), (column[index] for column in numbers)
        predictions.append(
            Prediction(
                masked,
                tokens[index][:count],
                confidences[:count],
                handle=Anchor(output, index),
                entropies=entropies[:count] if row.entropy else (),
            )
        )
    return predictions
