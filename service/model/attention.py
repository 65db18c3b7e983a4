"""Paged attention over rows: every row writes its keys and values to a page, then reads its pages.

A page holds one block. A row's page list is its sequence's prefix pages in order, then the page the
row itself writes: the sequence's own page when the block is final, a scratch page when it is not.
All rows write before any row reads, so a block that is committed and the next block's first denoise
can ride in one forward. Knows nothing of sequences or modes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from service.model.config import ModelConfig


class PagedCache:
    """Keys and values of all layers, backbone's first, MRP's behind them.

    `keys[layer]`, `values[layer]`: `[pages, block, kv_heads, head_dim]`.
    """

    def __init__(self, config: ModelConfig, num_pages: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.num_kv_layers, num_pages, config.block_size, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    @staticmethod
    def bytes_per_page(config: ModelConfig, dtype: torch.dtype) -> int:
        """Memory of one page over all layers, in bytes."""
        per_token = 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
        return config.num_kv_layers * config.block_size * per_token


@dataclass(frozen=True, slots=True)
class PageTable:
    """Where the rows of one forward write and read.

    `own` `[R]`: the page each row writes. `pages` `[R * P]`: the pages each row reads, flattened,
    padded with any page. `mask` `[R, 1, 1, P * block]`, True where a key may be read; None when all
    rows read P pages.
    """

    own: Tensor
    pages: Tensor
    mask: Tensor | None


class PagedAttention:
    """An `Attend` over a paged cache for the rows of one forward."""

    def __init__(self, cache: PagedCache, table: PageTable) -> None:
        self._cache, self._table = cache, table

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q `[R, L, heads, D]`, k and v `[R, L, kv_heads, D]` -> `[R, L, heads * D]`."""
        rows, length, heads, dim = q.shape
        kv_heads = k.shape[2]
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys.index_copy_(0, self._table.own, k)
        values.index_copy_(0, self._table.own, v)
        read_k = keys.index_select(0, self._table.pages).view(rows, -1, kv_heads, dim).transpose(1, 2)
        read_v = values.index_select(0, self._table.pages).view(rows, -1, kv_heads, dim).transpose(1, 2)
        # All queries of a row see the same keys, so the heads that share a key head are folded into
        # the query length: no key is repeated.
        folded = q.unflatten(2, (kv_heads, heads // kv_heads)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        out = F.scaled_dot_product_attention(folded, read_k, read_v, attn_mask=self._table.mask)
        merged: Tensor = out.unflatten(2, (heads // kv_heads, length)).permute(0, 3, 1, 2, 4).flatten(2)
        return merged
