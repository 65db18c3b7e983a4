"""One batch of token tensors. All rows have the same layout.

The positions after the end token in its block are the `tail`: always masked, never a target (see demo/backbone.py).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.layout import Layout


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples of one layout.

    `tokens` `[B, S]`: whole sequences. In the region of the copies, `[B, N]`: `answer` marks the positions to decode,
    `tail` the positions after the end.
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
    """A batch of `rows`: the tokens of each, and where its answer begins. All rows fit into the layout.

    The rest of a row is padding. Blocks of padding are not masked, since nothing is decoded there. The rest of the
    block in which an answer ends is its tail. Where outputs are shifted, the first token of a block is given.
    """
    padded = torch.tensor([tokens + [pad_id] * (layout.length - len(tokens)) for tokens, _ in rows])
    positions = torch.arange(layout.first, layout.length)[None]
    starts = torch.tensor([prompt for _, prompt in rows])[:, None]
    ends = torch.tensor([len(tokens) for tokens, _ in rows])[:, None]
    closed = (ends + layout.block - 1) // layout.block * layout.block
    answer, tail = (positions >= starts) & (positions < ends), (positions >= ends) & (positions < closed)
    if layout.sub_block is not None:
        answer &= positions % layout.block > 0
    return Batch(layout, padded, answer, tail, mask_id)
