"""The memory of keys and values. Who holds which page is the engine's business (`service/engine/prefix_cache.py`)."""

from __future__ import annotations

import torch

from service.model.config import ModelConfig

#: Pages that belong to no sequence. An implementation may write keys there that only one forward reads.
NUM_SPARE = 256


class PagedCache:
    """Keys and values of all layers, the backbone's first, MRP's behind them. A page holds one block.

    `keys[layer]`, `values[layer]`: `[pages, block, kv_heads, head_dim]`; `spare`: the pages behind the sequences'.
    `heads_per_key`: query heads that share a key head. `longest`: pages of a sequence at most.
    """

    def __init__(self, config: ModelConfig, num_pages: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.num_kv_layers, num_pages + NUM_SPARE, config.block_size, config.num_kv_heads, config.head_dim)
        self.num_pages, self.spare = num_pages, range(num_pages, num_pages + NUM_SPARE)
        self.block_size = config.block_size
        self.longest = max(1, min(num_pages, config.max_positions // config.block_size))
        self.heads_per_key = config.num_heads // config.num_kv_heads
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    @staticmethod
    def bytes_per_page(config: ModelConfig, dtype: torch.dtype) -> int:
        """Memory of one page over all layers, in bytes."""
        per_token = 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
        return config.num_kv_layers * config.block_size * per_token
