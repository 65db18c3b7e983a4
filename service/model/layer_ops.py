"""The norms and the rotation of a decoder layer in torch's operations, which are the definition.

They serve the CPU and training. `triton_layers.py` has them as kernels. H hidden, D the size of a head.
"""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Rotation(NamedTuple):
    """The rotary embedding of the rows' positions: both `[R, L, 1, D]`; the first half of `sin` is negated.

    D may be smaller than a head. Then the first D numbers of a head are rotated.
    """

    cos: Tensor
    sin: Tensor


class KvTargets(NamedTuple):
    """The pages of a layer, and the pages that rows write."""

    keys: Tensor  # [pages, L, kv_heads, D]
    values: Tensor
    targets: Tensor  # [R] int32, the page of a row, or -1 for none
    key_scales: Tensor | None = None  # [pages, L, kv_heads] of pages in 8 bits; then keys and values are rounded
    value_scales: Tensor | None = None


class PagedAttend:
    """An `Attend` of a forward whose keys and values the kernel of the rotation can write to their pages."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As `Attend`; writes keys and values first."""
        raise NotImplementedError

    def kv_targets(self, layer: int) -> KvTargets | None:
        """The pages to write; None if no row is written and none is rounded."""
        raise NotImplementedError

    @property
    def final_rows(self) -> tuple[Tensor, Tensor]:
        """The tables that say which rows are final, and the page that each writes, int32 `[R]`. They may be changed."""
        raise NotImplementedError

    def read(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As `Attend`, after keys and values were written."""
        raise NotImplementedError


class HeadNorms(NamedTuple):
    """The norms of queries and keys: weights `[D]`."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float


class Heads(NamedTuple):
    """The numbers of heads of queries, and of keys and values. `norms`: None for heads without norms."""

    heads: int
    kv_heads: int
    norms: HeadNorms | None


def rms_norm(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    """x `[..., H]` -> its norm."""
    if _few_operations(x):
        return _over_rms(x, norm.eps or 0.0).mul_(norm.weight)
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)


def _few_operations(x: Tensor) -> bool:
    """Whether `_over_rms` serves: torch's own norm is nine operations on a CPU."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled()


def _over_rms(x: Tensor, eps: float) -> Tensor:
    """x over its root mean square, a new tensor, in five operations. If a width is a power of two, torch's own bits."""
    mean = torch.add(_scalar(eps), x.mul(x).sum(-1, keepdim=True), alpha=1.0 / x.shape[-1])
    return mean.rsqrt_().mul(x)


@cache
def _scalar(number: float) -> Tensor:
    """A tensor of one number: with a number torch would make such a tensor at every call."""
    return torch.tensor(number)


def norm_and_rotate(qkv: Tensor, sizes: Heads, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """qkv `[R, L, heads + 2 kv_heads, D]` -> q, k and v, q and k normalised and rotated. By torch's operations."""
    heads, kv_heads, norms = sizes
    qk, v = qkv.split_with_sizes((heads + kv_heads, kv_heads), 2)
    if norms is not None:
        weights = torch.cat((norms.q_weight.expand(heads, -1), norms.k_weight.expand(kv_heads, -1)))
        if _few_operations(qk):
            qk = _over_rms(qk, norms.eps).mul_(weights)
        else:
            qk = F.rms_norm(qk, (qkv.shape[-1],), None, norms.eps) * weights
    q, k = rotate(qk, rotation).split_with_sizes((heads, kv_heads), 2)
    return q, k, v


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Applies the rotary embedding to `[R, L, heads, D]`."""
    cos, sin = rotation
    width = cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat([rotate(x[..., :width], rotation), x[..., width:]], -1)
    return torch.addcmul(x * cos, x.roll(width // 2, -1), sin)
