"""Attention for training: the `Attend` that is passed to the model's layers.

A row consists of a clean sequence and of copies with masks (layout.py). The clean part is computed once. All copies,
and all applications of MRP to them, use its keys and values. Layers may be compiled; attention is slower if it is.
"""

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

#: layer -> keys and values `[B, T, kv_heads, D]`
Prefix = dict[int, tuple[Tensor, Tensor]]


class DenseAttention:
    """Attention of `[B, T]` queries over themselves. `mask` `[T, T]`: True where a key may be read.

    `layers`: the keys and values of every layer.
    """

    def __init__(self, mask: Tensor) -> None:
        self._mask = mask
        self.layers: Prefix = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q `[B, T, heads, D]`, k and v `[B, T, kv_heads, D]` -> `[B, T, heads * D]`."""
        k, q = k.to(v.dtype), q.to(v.dtype)
        self.layers[layer] = (k, v)
        attend = fused if q.is_cuda else written_out
        return attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), self._mask).transpose(1, 2).flatten(2)


class BlockAttention:
    """Attention of blocks beside each other. Each block reads itself and a part of a kept prefix.

    `reads` `[T, prefix]`: True where a key of the prefix may be read. T is a multiple of `block`.
    """

    def __init__(self, reads: Tensor, block: int, prefix: Prefix) -> None:
        self._reads = reads
        self._block = block
        self._prefix = prefix

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q `[B, T, heads, D]`, k and v `[B, T, kv_heads, D]` -> `[B, T, heads * D]`."""
        earlier = [tensor.to(v.dtype).transpose(1, 2) for tensor in self._prefix[layer]]
        block_kv = [tensor.to(v.dtype).transpose(1, 2) for tensor in (k, v)]
        q = q.to(v.dtype).transpose(1, 2)
        if q.is_cuda:
            keys, values = (torch.cat(both, 2) for both in zip(earlier, block_kv, strict=True))
            out = fused(q, keys, values, self._mask)
        else:
            out = blockwise(q, (earlier[0], earlier[1]), (block_kv[0], block_kv[1]), self._reads, self._block)
        return out.transpose(1, 2).flatten(2)

    @cached_property
    def _mask(self) -> Tensor:
        return with_own_blocks(self._reads, self._block)


def with_own_blocks(reads: Tensor, block: int) -> Tensor:
    """`reads` `[T, S]` of the prefix -> `[T, S + T]`: the same, and True for every block itself."""
    number = torch.arange(len(reads)) // block
    return torch.cat([reads, number[:, None] == number[None]], 1)


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q `[B, heads, T, D]`, k and v `[B, kv_heads, S, D]`, mask `[T, S]` -> `[B, heads, T, D]`.

    On a CPU, the backward pass of the fused kernel is three times slower than this at the demo's lengths.
    """
    keys, values = (_for_all_heads(x, q) for x in (k, v))
    scores = q @ keys.transpose(2, 3) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).to(v.dtype)
    return torch.matmul(weights, values)


def blockwise(
    q: Tensor, earlier: tuple[Tensor, Tensor], block_kv: tuple[Tensor, Tensor], reads: Tensor, block: int
) -> Tensor:
    """As `written_out` over `earlier` and `block_kv` keys and values, but without the scores between different blocks.

    q `[B, heads, T, D]`; earlier `[B, kv_heads, S, D]`, reads `[T, S]`; own `[B, kv_heads, T, D]`. In a row with five
    copies of about 64 tokens, three quarters of all scores are left out. On a CPU this is three to five times faster.
    """
    length, blocks = earlier[0].shape[2], (-1, block)
    clean_keys, clean_values, keys, values = (_for_all_heads(x, q) for x in (*earlier, *block_kv))
    scaled = q * q.shape[-1] ** -0.5
    with torch.autocast(q.device.type, enabled=False):
        unread = torch.zeros(reads.shape, dtype=q.dtype).masked_fill(~reads, -torch.inf)
        to_clean = scaled @ clean_keys.transpose(2, 3) + unread
        to_own = scaled.unflatten(2, blocks) @ keys.unflatten(2, blocks).transpose(3, 4)
        weights = torch.cat([to_clean, to_own.flatten(2, 3)], -1).softmax(-1)
        clean, within = weights.split([length, block], -1)
        own_seen = (within.unflatten(2, blocks) @ values.unflatten(2, blocks)).flatten(2, 3)
        seen: Tensor = clean @ clean_values + own_seen
        return seen


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As `written_out`, but without keeping the scores in memory.

    Key heads are repeated: with `enable_gqa` and a mask torch would take the operations that keep the scores.
    """
    keys, values = (_for_all_heads(x, q) for x in (k, v))
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


def _for_all_heads(x: Tensor, q: Tensor) -> Tensor:
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)
