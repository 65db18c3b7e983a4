"""Rows: everything a model does in a forward, and their tensors.

A row is one block of tokens of one sequence at a block index. It reads its sequence's pages before it and,
if its block is final, writes its KV to the next. Prefill, denoise, verify, commit and MRP's passes are all rows;
nothing here knows which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.decode.block import MASKED, Block
from service.engine.forward.anchors import Anchor, gathered
from service.engine.request import Asked, SamplingParams
from service.model.transfer import to_device_async


class Row(NamedTuple):
    """One block of tokens to put through the model.

    `pages`: the sequence's pages; the row reads the first `index` and, if `writes_kv`, writes the next. If not, no
    row sees its KV. `sampling`: how its masked positions are read, None: they are not. `judge`: revealed positions
    whose token's probability is wanted, too. `anchor`: for MRP's rows, the row that it goes on from. `entropy`:
    whether that of the masked positions is wanted.
    `drafts`: what MRP says of the block is never more than a draft, so that candidates by an earlier reading of it are
    enough. `mask`: the tokens allowed at the leftmost masked position, a bit each, `[V / 8]`; None: all.
    `asked`: what is wanted of the masked positions besides.
    """

    state: Block
    index: int  # type: ignore[assignment]  # hides a tuple's own `index`
    pages: Sequence[int]
    writes_kv: bool
    sampling: SamplingParams | None = None
    judge: tuple[int, ...] = ()
    anchor: Anchor | None = None
    entropy: bool = False
    drafts: bool = False
    mask: NDArray[np.uint8] | None = None
    asked: Asked | None = None


@dataclass(frozen=True, slots=True)
class RowTensors:
    """Rows as tensors: tokens and positions `[R, L]`."""

    tokens: Tensor
    positions: Tensor


def to_tensors(rows: Sequence[Row], mask_token_id: int, device: torch.device) -> RowTensors:
    """Lays rows out for one forward."""
    both = np.empty((2, len(rows), len(rows[0].state.tokens)), np.int64)
    tokens, positions = both
    tokens[:] = [row.state.tokens for row in rows]
    tokens[tokens == MASKED] = mask_token_id
    block_size = tokens.shape[1]
    positions[:] = np.array([row.index * block_size for row in rows])[:, None] + np.arange(block_size)
    return RowTensors(*to_device_async(both, device).unbind(0))


def anchors_of(rows: Sequence[Row]) -> Tensor | None:
    """The hidden states that MRP goes on from, `[R, L, H]`. None if the rows are not MRP's."""
    anchors = [row.anchor for row in rows if row.anchor is not None]
    return gathered(anchors, lambda states: states.hidden) if anchors else None
