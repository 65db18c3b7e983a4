"""The places of tokens in a training row, and the rules of attention between them.

A row consists of the clean part and some copies. The clean part is the sequence without its last block, which no other
block reads. Each copy is the sequence from token `first` on, with masks in it. A block of a copy reads itself and the
clean blocks before it, as in a denoising step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """`length` tokens in blocks of `block`. Copies begin at token `first`, a multiple of `block`.

    `sub_block`: `ModelConfig.sub_block_size`. With it the outputs are shifted, and a block's first token is given.
    """

    length: int
    first: int
    block: int
    sub_block: int | None = None

    @property
    def clean(self) -> int:
        """The number of tokens in the clean part."""
        return self.length - self.block

    @property
    def noisy(self) -> int:
        """The number of tokens in one copy, N."""
        return self.length - self.first

    @property
    def blocks(self) -> int:
        """The number of blocks in one copy."""
        return self.noisy // self.block

    @property
    def clean_positions(self) -> Tensor:
        """Absolute positions of the clean part, `[1, clean]`."""
        return torch.arange(self.clean)[None]

    def positions(self, copies: int) -> Tensor:
        """Absolute positions of several copies, one after the other, `[1, copies * N]`."""
        return torch.arange(self.first, self.length).repeat(copies)[None]

    @property
    def clean_mask(self) -> Tensor:
        """The attention mask of the clean part, `[clean, clean]`: a block may read itself and earlier blocks."""
        block = self.clean_positions[0] // self.block
        return block[None] <= block[:, None]

    def outputs(self, hidden: Tensor) -> Tensor:
        """hidden `[B, T, H]` of copies -> the hidden states that predict each position's token, same shape."""
        return hidden if self.sub_block is None else hidden.roll(1, 1)

    def readable(self, masked: Tensor) -> Tensor:
        """masked `[B, T]` of copies -> the positions of them that a forward may reveal, same shape."""
        if self.sub_block is None:
            return masked
        parts = masked.unflatten(1, (-1, self.block // self.sub_block, self.sub_block))
        opened = parts.any(-1).cumsum(-1) <= 1  # the leftmost sub-block with masks, and those before it
        readable: Tensor = (parts & opened[..., None]).flatten(1)
        return readable

    def reads(self, copies: int) -> Tensor:
        """The attention mask of the copies to the clean part, `[copies * N, clean]`: a block reads earlier blocks."""
        return self.clean_positions // self.block < self.positions(copies)[0][:, None] // self.block
