"""Rows: everything a model does in a forward, and their tensors.

A row is one block of tokens of one sequence at a block index. It writes its KV to a page and reads
its sequence's pages before it. Prefill, denoise, verify, commit and MRP's passes are all rows; nothing
here knows which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from service.decode.block import MASKED, Block
from service.engine.request import SamplingParams
from service.engine.sampling import Candidates, Read
from service.model.attention import PageTable


@dataclass(frozen=True, slots=True)
class Row:
    """One block of tokens to put through the model.

    `pages`: the sequence's pages; the row reads the first `index` and, if `keeps`, writes the next.
    Otherwise it writes to a scratch page and nobody sees its KV. `reads`: whether the masked
    positions are to be read; `judge`: revealed positions whose token's probability is wanted.
    `anchor`: `[L, H]` hidden states, for MRP's rows. `entropy`: whether the masked positions' is wanted too.
    `drafts`: what MRP says of the block is never more than a draft, so that `candidates` by an earlier reading of it,
    `[L, C]`, are enough.
    """

    state: Block
    index: int
    pages: Sequence[int]
    keeps: bool
    sampling: SamplingParams | None = None
    judge: tuple[int, ...] = ()
    anchor: Tensor | None = None
    entropy: bool = False
    drafts: bool = False
    candidates: Candidates | None = None

    def reads(self, row: int, block_size: int) -> list[Read]:
        """The reads of this row as number `row` of a forward: masked positions, then judged ones."""
        if self.sampling is None:
            return []
        sampling, tokens, revealed = self.sampling, self.state.tokens, self.state.num_revealed
        slot, start = row * block_size, self.index * block_size
        wanted = [(position, None) for position in self.state.masked]
        asked = [(position, tokens[position]) for position in self.judge]
        return [Read(slot + p, start + p, revealed, sampling, token, self.entropy) for p, token in [*wanted, *asked]]


@dataclass(frozen=True, slots=True)
class RowTensors:
    """Rows as tensors: tokens and positions `[R, L]`, and where they read and write."""

    tokens: Tensor
    positions: Tensor
    table: PageTable


def to_tensors(
    rows: Sequence[Row], block_size: int, mask_token_id: int, device: torch.device, width: int | None = None
) -> RowTensors:
    """Lays rows out for one forward. Rows that keep nothing get the scratch pages 0, 1, … in order.

    `width`: how many pages every row reads, always masked; None: as many as needed, masked if needed.
    """
    tokens = np.array([row.state.tokens for row in rows], dtype=np.int64)
    tokens[tokens == MASKED] = mask_token_id
    counts = np.array([row.index for row in rows], dtype=np.int64)
    pages = np.zeros((len(rows), width or int(counts.max()) + 1), dtype=np.int64)
    own = np.cumsum([not row.keeps for row in rows]) - 1
    for number, row in enumerate(rows):
        pages[number, : row.index] = row.pages[: row.index]
        if row.keeps:
            own[number] = row.pages[row.index]
    pages[np.arange(len(rows)), counts] = own
    positions = counts[:, None] * block_size + np.arange(block_size)
    mask = None
    if width is not None or counts.min() != counts.max():
        readable = np.arange(pages.shape[1]) <= counts[:, None]
        mask = torch.from_numpy(readable.repeat(block_size, axis=1)[:, None, None, :]).to(device)
    table = PageTable(torch.from_numpy(own).to(device), torch.from_numpy(pages.reshape(-1)).to(device), mask)
    return RowTensors(torch.from_numpy(tokens).to(device), torch.from_numpy(positions).to(device), table)
