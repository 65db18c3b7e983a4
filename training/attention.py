"""Dense masked attention for training: the `Attend` that the model's layers are handed.

A row is a whole sequence here. Knows masks and, where asked to, keeps keys and values, so that states
of later blocks can read a clean prefix computed once. Knows no model.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: layer -> keys and values `[B, T, kv_heads, D]`
Prefix = dict[int, tuple[Tensor, Tensor]]


class DenseAttention:
    """Attention of `[B, T]` queries over a kept prefix and over themselves.

    `mask` `[T, prefix + T]`, True where a key may be read. `prefix` is read before the row's own keys.
    Each layer's own keys and values are kept in `kept`.
    """

    def __init__(self, mask: Tensor, prefix: Prefix | None = None) -> None:
        self._mask, self._prefix = mask, prefix or {}
        self.kept: Prefix = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q `[B, T, heads, D]`, k and v `[B, T, kv_heads, D]` -> `[B, T, heads * D]`."""
        k, q = k.to(v.dtype), q.to(v.dtype)
        self.kept[layer] = (k, v)
        if layer in self._prefix:
            earlier_k, earlier_v = self._prefix[layer]
            k, v = torch.cat([earlier_k, k], 1), torch.cat([earlier_v, v], 1)
        groups = q.shape[2] // k.shape[2]
        keys = k.transpose(1, 2).repeat_interleave(groups, 1)
        values = v.transpose(1, 2).repeat_interleave(groups, 1)
        # Written out: on a CPU the fused kernel's backward pass is three times slower at these lengths.
        scores = q.transpose(1, 2) @ keys.transpose(2, 3) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~self._mask, -torch.inf).softmax(-1).to(v.dtype)
        return torch.matmul(weights, values).transpose(1, 2).flatten(2)
