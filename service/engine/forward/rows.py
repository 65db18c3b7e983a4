"""Rows, the unit of a forward's work; their tensors; and the forward's output, on which later forwards of MRP build.

A row is one block of tokens of one request at a block index. It reads its request's pages before it and, if its block
is final, writes its KV to the next page. Prefill, denoise, verify, commit and MRP's passes are all rows. This module
does not know which is which.

A row of MRP has an `Anchor`: the earlier row whose hidden states it reads. So a forward's tensors stay whole, and rows
without a later row of MRP cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, stack

from service.decode.block import MASKED, Block
from service.engine.request import LogprobsRequest, SamplingParams
from service.model.transfer import to_device_async


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Draft candidates: the tokens, int64 `[…, C]`, and `other_weight`, the weight of all other tokens, `[…]`.

    The weight is the logsumexp of their logits over the request's temperature, the mask token's included.
    """

    tokens: Tensor
    other_weight: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ForwardOutput:
    """A forward's output that stays on the device for MRP. `hidden`: hidden states `[R, L, H]`.

    `candidates`: draft candidates of every position, `[R, L, …]`, of the rows for which `has_candidates` `[R]` is true.
    """

    hidden: Tensor
    candidates: Candidates | None = None
    has_candidates: NDArray[np.bool_] | None = None


class Anchor(NamedTuple):
    """Row `row` of a forward's output."""

    output: ForwardOutput
    row: int

    @property
    def hidden(self) -> Tensor:
        """The row's hidden states `[L, H]`."""
        return self.output.hidden[self.row]

    @property
    def has_candidates(self) -> bool:
        """Whether the row's positions have draft candidates."""
        return self.output.has_candidates is not None and bool(self.output.has_candidates[self.row])


class LogitAdjustment(NamedTuple):
    """The changes at the masked positions of a state.

    `tokens` `[K]`, distinct: the tokens whose logits change at every position. `bias`, `divisor`, `penalty`: `[K]`
    float32. A logit first gets the bias. Then it is divided by the divisor, or multiplied if it is not positive. Then
    the penalty is subtracted. `forbidden`: position in the block -> further tokens that may not stand there.
    """

    tokens: NDArray[np.int32]
    bias: NDArray[np.float32]
    divisor: NDArray[np.float32]
    penalty: NDArray[np.float32]
    forbidden: Mapping[int, Sequence[int]]


class Row(NamedTuple):
    """One block of tokens to put through the model.

    `pages`: the request's pages. The row reads the first `index` pages and, if `writes_kv`, writes the next one.
    `sampling`: the sampling parameters of its masked positions, None: its output is not sampled. `rescore`: revealed
    positions whose token's probability is also computed. `anchor`: the earlier row whose hidden states a row of MRP
    reads. `entropy`: whether the entropies of the masked positions are computed.
    `drafts`: whether MRP's picks of the block are drafts only, so that they may be chosen from candidates. `mask`: the
    tokens allowed at the leftmost masked position, a bit each, `[V / 8]`; None: all. `logprobs`: the log-probabilities
    wanted of each masked position. `adjustments`: the changes of logits, of the masked positions first, then of each
    position of `rescore`; empty: none.
    """

    state: Block
    index: int  # type: ignore[assignment]  # hides a tuple's own `index`
    pages: Sequence[int]
    writes_kv: bool
    sampling: SamplingParams | None = None
    rescore: tuple[int, ...] = ()
    anchor: Anchor | None = None
    entropy: bool = False
    drafts: bool = False
    mask: NDArray[np.uint8] | None = None
    logprobs: LogprobsRequest | None = None
    adjustments: tuple[LogitAdjustment, ...] = ()


def to_tensors(rows: Sequence[Row], mask_token_id: int, device: torch.device) -> Sequence[Tensor]:
    """The tokens and the positions of rows, `[R, L]` each."""
    both = np.empty((2, len(rows), len(rows[0].state.tokens)), np.int64)
    tokens, positions = both
    tokens[:] = [row.state.tokens for row in rows]
    tokens[tokens == MASKED] = mask_token_id
    block_size = tokens.shape[1]
    positions[:] = np.array([row.index * block_size for row in rows])[:, None] + np.arange(block_size)
    return to_device_async(both, device).unbind(0)


def anchors_of(rows: Sequence[Row]) -> Tensor | None:
    """The hidden states `[R, L, H]` of the anchors of MRP's rows. None if the rows are not MRP's."""
    anchors = [row.anchor for row in rows if row.anchor is not None]
    return gathered(anchors, lambda output: output.hidden) if anchors else None


def gathered(anchors: Sequence[Anchor], part: Callable[[ForwardOutput], Tensor]) -> Tensor:
    """The anchors' rows of a tensor of their outputs, `[N, …]`: one operation if all anchors are of one forward."""
    output = anchors[0].output
    if any(anchor.output is not output for anchor in anchors):
        return stack([part(anchor.output)[anchor.row] for anchor in anchors])
    whole = part(output)
    return whole.index_select(0, to_device_async(np.array([anchor.row for anchor in anchors]), whole.device))
