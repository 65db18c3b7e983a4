"""What the batched calls of a forward have in common: which rows they are over, and how these are laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from service.model.attention.cache import PagedCache
from service.model.transfer import send


class Rows(NamedTuple):
    """Queries `[R, L, heads, D]`, keys and values `[R, L, kv_heads, D]` of rows, and where the result goes.

    `seen` `[R, L, heads, D]` is written.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    seen: Tensor

    def part(self, rows: slice) -> Rows:
        """Some of the rows."""
        return Rows(self.q[rows], self.k[rows], self.v[rows], self.seen[rows])


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows of a batch: as many of each unit, one unit after another. T is a unit's number of tokens."""

    num_units: int
    heads_per_key: int

    def keys(self, rows: Tensor) -> Tensor:
        """`[…, L, kv_heads, D]`, rows or pages of all units, -> `[units, kv_heads, …, D]`."""
        return rows.reshape(self.num_units, -1, *rows.shape[-2:]).transpose(1, 2)

    def queries(self, rows: Tensor) -> Tensor:
        """`[R, L, heads, D]` -> a view `[units, kv_heads, heads_per_key, T, D]`."""
        shape = (self.num_units, -1, rows.shape[2] // self.heads_per_key, self.heads_per_key, rows.shape[3])
        return rows.view(shape).permute(0, 2, 3, 1, 4)


def hidden_score(dtype: torch.dtype) -> float:
    """What a mask adds to the score of a key that must not be seen: finite, so that nothing is ever 0 / 0."""
    return torch.finfo(dtype).min / 2


def mask_of(seen: np.ndarray, cache: PagedCache) -> Tensor:
    """0 where a key is seen, a score that hides it elsewhere."""
    zeros = torch.zeros(seen.shape, dtype=cache.keys.dtype)
    return send(zeros.masked_fill_(torch.from_numpy(~seen), hidden_score(zeros.dtype)), cache.keys.device)


def page_mask(counts: np.ndarray, width: int, cache: PagedCache) -> Tensor:
    """`[units, 1, 1, width * L]`: the first `counts[unit]` pages are seen."""
    seen = (np.arange(width) < counts[:, None]).repeat(cache.block_size, axis=1)
    return mask_of(seen[:, None, None], cache)
