"""Attention over a part of the keys, and the merge of two parts by their log-sum-exp.

The softmax over all keys is the softmax over each part, weighted by the parts' sums of exponentials. So a part returns
the logarithm of its sum, too. On a CPU torch's own kernel computes it, elsewhere torch's plain operations.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class PartialAttention(NamedTuple):
    """`out` `[B, heads, T, D]`, `lse` `[B, heads, T]`: the logarithm of the sum of exponentials of the scores."""

    out: Tensor
    lse: Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> PartialAttention:
    """q `[B, heads, T, D]`, k and v `[B, heads, S, D]`. `mask` is added to the scores `[B, heads, T, S]`."""
    if q.device.type == "cpu":
        return PartialAttention(*torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask))  # noqa: SLF001
    return attend_by_operations(q, k, v, mask)


def attend_by_operations(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> PartialAttention:
    """As `attend`, in operations that every device has. Half precision is computed in fp32."""
    exact = q.dtype if q.dtype == torch.float64 else torch.float32
    scores = (q.to(exact) / math.sqrt(q.shape[-1])) @ k.to(exact).transpose(-1, -2)
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    out = (scores - lse.unsqueeze(-1)).exp() @ v.to(exact)
    return PartialAttention(out.to(q.dtype), lse)


def merge(first: PartialAttention, second: PartialAttention) -> Tensor:
    """The attention over the keys of both parts, `[B, heads, T, D]`."""
    weight = torch.sigmoid(second.lse - first.lse).unsqueeze(-1)
    return torch.lerp(first.out.to(weight.dtype), second.out.to(weight.dtype), weight).to(first.out.dtype)
