"""Where tokens sit in a training row, and what may attend to what.

A row is `[clean | noisy copy 0 | noisy copy 1 | …]`. `clean` is the sequence without its last block,
which nothing reads; each copy holds the sequence from token `first` on, with masks in it. A copy's
block reads the clean blocks before it and itself, which is what a denoising step sees. Knows no model
and no data.
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

    def positions(self, copies: int, *, clean: bool = True) -> Tensor:
        """Absolute positions of a row `[1, T]`."""
        parts = [torch.arange(self.clean)] if clean else []
        return torch.cat([*parts, *[torch.arange(self.first, self.length)] * copies])[None]

    def mask(self, copies: int) -> Tensor:
        """Who may read whom in a row, `[T, T]`, True where allowed."""
        block = self.positions(copies)[0] // self.block
        owner = torch.cat([torch.full((self.clean,), -1), torch.arange(copies).repeat_interleave(self.noisy)])
        clean = owner == -1
        reads_clean = clean[None] & torch.where(
            clean[:, None], block[None] <= block[:, None], block[None] < block[:, None]
        )
        own_block = (owner[:, None] == owner[None]) & ~clean[:, None] & (block[:, None] == block[None])
        return reads_clean | own_block
