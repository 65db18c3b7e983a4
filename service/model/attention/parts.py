"""Attention over a part of the keys, and how two parts become one.

The softmax over all keys is that over each part, weighted by the parts' sums of exponentials. A part therefore gives
the logarithm of its sum beside its result. On a CPU torch's own kernel does; elsewhere it is written out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """`out` `[B, heads, T, D]`, `lse` `[B, heads, T]`: the logarithm of the sum of exponentials of the scores."""

    out: Tensor
    lse: Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Part:
    """q `[B, heads, T, D]`, k and v `[B, heads, S, D]`. `mask` is added to the scores `[B, heads, T, S]`."""
    if q.device.type == "cpu":
        return Part(*torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask))  # noqa: SLF001
    return written_out(q, k, v, mask)


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Part:
    """As `attend`, in operations that every device has; half precision is computed in single."""
    exact = q.dtype if q.dtype == torch.float64 else torch.float32
    scores = (q.to(exact) / math.sqrt(q.shape[-1])) @ k.to(exact).transpose(-1, -2)
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    out = (scores - lse.unsqueeze(-1)).exp() @ v.to(exact)
    return Part(out.to(q.dtype), lse)


def merge(one: Part, other: Part) -> Tensor:
    """The attention over the keys of both parts, `[B, heads, T, D]`."""
    weight = torch.sigmoid(other.lse - one.lse).unsqueeze(-1)
    return torch.lerp(one.out.to(weight.dtype), other.out.to(weight.dtype), weight).to(one.out.dtype)
