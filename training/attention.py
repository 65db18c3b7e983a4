"""Dense masked attention for training: the `Attend` that the model's layers are handed.

A row is a whole sequence here. Knows masks and, where asked to, keeps keys and values, so that states
of later blocks can read a clean prefix computed once. Knows no model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
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
        attend = fused if q.is_cuda else written_out
        return attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), self._mask).transpose(1, 2).flatten(2)


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q `[B, heads, T, D]`, k and v `[B, kv_heads, S, D]`, mask `[T, S]` -> `[B, heads, T, D]`.

    On a CPU the fused kernel's backward pass is three times slower at the demo's lengths.
    """
    groups = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ keys.transpose(2, 3) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).to(v.dtype)
    return torch.matmul(weights, values)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As `written_out`, without the scores in memory."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
