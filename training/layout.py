"""Where tokens sit in a training row, and what may attend to what.

A row is `clean` and some copies. `clean` is the sequence without its last block, which nothing reads; each
copy holds the sequence from token `first` on, with masks in it. A copy's block reads the clean blocks before
it and itself, which is what a denoising step sees. Knows no model and no data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """`length` tokens in blocks of `block`; copies begin at token `first`, a multiple of `block`."""

    length: int
    first: int
    block: int

    @property
    def clean(self) -> int:
        """Tokens in the clean part."""
        return self.length - self.block

    @property
    def noisy(self) -> int:
        """Tokens in one copy."""
        return self.length - self.first

    @property
    def blocks(self) -> int:
        """Blocks in one copy."""
        return self.noisy // self.block

    @property
    def clean_positions(self) -> Tensor:
        """Absolute positions of the clean part, `[1, clean]`."""
        return torch.arange(self.clean)[None]

    def positions(self, copies: int) -> Tensor:
        """Absolute positions of some copies beside each other, `[1, copies * N]`."""
        return torch.arange(self.first, self.length).repeat(copies)[None]

    @property
    def clean_mask(self) -> Tensor:
        """Who may read whom in the clean part, `[clean, clean]`, True where allowed: earlier blocks and the own one."""
        block = self.clean_positions[0] // self.block
        return block[None] <= block[:, None]

    def reads(self, copies: int) -> Tensor:
        """What of the clean part the copies may read, `[copies * N, clean]`: the blocks before the own one."""
        return self.clean_positions // self.block < self.positions(copies)[0][:, None] // self.block
