"""Attention backends: their protocol, and the paged cache of keys and values that they read and write.

A backend prepares a forward once, then every layer calls the result. A row gives it the pages of its sequence, the
index of its block and whether the block is final. The backend makes masks, page tables and batches itself. A new
backend is a file with an `AttentionBackend` and a line in `registry.py`.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from service.errors import OutOfMemory
from service.model.attention.pages import AUTO, Pages, page_form
from service.model.attention.shared_prefix import RowKv
from service.model.config import ModelConfig
from service.model.device import give_back, out_of_memory_as

#: Pages that belong to no sequence. A backend may write keys there that only one forward reads.
NUM_SPARE = 256


class PagedCache:
    """Keys and values of all layers, the backbone's first, then MRP's. A page holds one block.

    `keys[layer]`, `values[layer]`: `[pages, block, kv_heads, head_dim]`; `layers[layer]`: both, in their form
    (`pages.py`). `dtype`: the model's type. `spare`: the pages after the sequences' pages. `heads_per_key`: query heads
    that share a key head. `max_pages`: the most pages of a sequence. `causal`: whether a token sees no later one of its
    block. The engine's `prefix_cache.py` decides who holds which page. SettingsError for an unknown `kv_cache_dtype`.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        device: torch.device,
        dtype: torch.dtype,
        kv_cache_dtype: str = AUTO,
    ) -> None:
        shape = (config.num_kv_layers, num_pages + NUM_SPARE, config.block_size, config.num_kv_heads, config.head_dim)
        self.num_pages, self.spare = num_pages, range(num_pages, num_pages + NUM_SPARE)
        self.block_size, self.causal = config.block_size, config.causal
        self.max_pages = max(1, min(num_pages, config.max_positions // config.block_size))
        self.heads_per_key = config.num_heads // config.num_kv_heads
        self.device, self.dtype = device, dtype
        self._shape, self._form = torch.Size(shape), page_form(kv_cache_dtype)
        self._take(self._zeros(shape), self._zeros(shape))

    def release(self) -> None:
        """Gives the memory back. All pages are lost. No forward may run before `restore`."""
        self._take(self._zeros((0, 0)), self._zeros((0, 0)))
        give_back(self.device)

    def restore(self) -> None:
        """Takes memory for all pages again, at other addresses. OutOfMemory changes nothing."""
        with out_of_memory_as(OutOfMemory("the device has no memory for the KV cache", retry_after=1.0)):
            self._take(self._zeros(self._shape), self._zeros(self._shape))

    def _zeros(self, shape: Sequence[int]) -> Pages:
        return self._form.zeros(shape, self.device, self.dtype)

    def _take(self, keys: Pages, values: Pages) -> None:
        self.keys, self.values = keys.numbers, values.numbers
        self.scales = keys.scales, values.scales
        self.layers = list(zip(keys.layers(), values.layers(), strict=True))


class AttentionForward(Protocol):
    """The attention of one forward."""

    @property
    def order(self) -> Sequence[int]:
        """The order of the layers' rows: row `i` of the tensors is row `order[i]` of the forward."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q `[R, L, heads, D]`, k and v `[R, L, kv_heads, D]` -> `[R, L, heads * D]`.

        Every row sees the pages before its block, the final blocks before it that are rows of this forward, and its
        own block. In a causal model a token sees its own block only up to itself.
        """


class AttentionBackend(Protocol):
    """Makes the attention of forwards over one cache."""

    @staticmethod
    def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
        """Why the backend cannot run on a device with a type; None if it can."""

    def prepare(self, rows: Sequence[RowKv], width: int | None = None) -> AttentionForward:
        """The attention of a forward over rows. Rows of one sequence are adjacent, by ascending index.

        `width`: every row is computed in the same shapes, as if it read `width` pages, its own included; the order
        stays. None: as is fastest.
        """
