"""One batch of token tensors, all rows of one layout. Knows no model and no file.

What follows the end token in its block is `tail`: always a mask, never a target (demo/backbone.py says why).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.layout import Layout


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples of one layout.

    `tokens` `[B, S]`, whole sequences. Of the copies' region, `[B, N]`: `answer` marks the positions to
    decode, `tail` those behind the end.
    """

    layout: Layout
    tokens: Tensor
    answer: Tensor
    tail: Tensor
    mask_id: int

    @property
    def clean(self) -> Tensor:
        """The clean part of a training row."""
        return self.tokens[:, : self.layout.clean]

    @property
    def truth(self) -> Tensor:
        """The copies' region without masks, `[B, N]`."""
        return self.tokens[:, self.layout.first :]

    def masked(self, where: Tensor) -> Tensor:
        """The copies' region with masks at `where` and in the tail, `[B, N]`."""
        return torch.where(where | self.tail, self.mask_id, self.truth)


def collate(rows: list[tuple[list[int], int]], layout: Layout, pad_id: int, mask_id: int) -> Batch:
    """rows: tokens and where the answer begins. They fit into the layout; what is left of it is padding.

    Blocks of padding are not masked: nothing is decoded there. The rest of the block of an answer's end is its tail.
    """
    padded = torch.tensor([tokens + [pad_id] * (layout.length - len(tokens)) for tokens, _ in rows])
    place = torch.arange(layout.first, layout.length)[None]
    starts = torch.tensor([prompt for _, prompt in rows])[:, None]
    ends = torch.tensor([len(tokens) for tokens, _ in rows])[:, None]
    closed = (ends + layout.block - 1) // layout.block * layout.block
    answer, tail = (place >= starts) & (place < ends), (place >= ends) & (place < closed)
    return Batch(layout, padded, answer, tail, mask_id)
