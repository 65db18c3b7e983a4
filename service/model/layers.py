"""Qwen3's decoder layers. Attention is a function of the caller.

Serving passes paged attention (`attention/`), training a dense masked one. The layers know neither a cache nor a mask.
Projections of the same input are one matrix (`qkv_proj`, `gate_up_proj`): on small batches a forward is bound by the
number of operations. Shapes: `[R, L, H]`, rows, tokens per row, hidden. Source: Qwen3 (transformers' `modeling_qwen3`),
which SDAR keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from service.model.config import ModelConfig

#: attend(layer, q [R, L, heads, D], k [R, L, kv_heads, D], v [R, L, kv_heads, D]) -> [R, L, heads * D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
#: adds up a tensor over the tensor-parallel ranks
AllReduce = Callable[[Tensor], Tensor]


class Rotation(NamedTuple):
    """The rotary embedding of the rows' positions: both `[R, L, 1, D]`; the first half of `sin` is negated.

    D may be smaller than a head. Then the first D numbers of a head are rotated.
    """

    cos: Tensor
    sin: Tensor


class RotaryTable(nn.Module):
    """cos and sin of every position, computed once in fp32 and kept in the model's dtype."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dim = config.rotary_dim or config.head_dim
        frequencies = config.rope_theta ** (-torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim)
        angles = torch.arange(config.max_positions, dtype=torch.float32, device="cpu")[:, None] * frequencies
        self.register_buffer("cos", torch.cat([angles.cos(), angles.cos()], -1), persistent=False)
        self.register_buffer("sin", torch.cat([-angles.sin(), angles.sin()], -1), persistent=False)

    def forward(self, positions: Tensor) -> Rotation:
        """positions `[R, L]`, absolute."""
        return Rotation(self.cos[positions].unsqueeze(2), self.sin[positions].unsqueeze(2))


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Applies the rotary embedding to `[R, L, heads, D]`."""
    width = rotation.cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat([rotate(x[..., :width], rotation), x[..., width:]], -1)
    half = width // 2
    return torch.addcmul(x * rotation.cos, x.roll(half, -1), rotation.sin)


class SelfAttention(nn.Module):
    """Grouped-query attention with RMSNorm on every query and key head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.eps = config.rms_norm_eps
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=self.eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=self.eps)

    def forward(self, x: Tensor, rotation: Rotation, layer: int, attend: Attend) -> Tensor:
        """x `[R, L, H]` -> `[R, L, H]`."""
        heads, kv_heads = self.heads, self.kv_heads
        qkv = self.qkv_proj(x).unflatten(-1, (heads + 2 * kv_heads, self.head_dim))
        qk, v = qkv.split((heads + kv_heads, kv_heads), dim=2)
        q, k = rotate(self._norm(qk), rotation).split((heads, kv_heads), dim=2)
        out: Tensor = self.o_proj(attend(layer, q, k, v))
        return out

    def _norm(self, qk: Tensor) -> Tensor:
        """Both norms in one operation: qk `[R, L, heads + kv_heads, D]`."""
        weights = (self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1))
        return F.rms_norm(qk, (self.head_dim,), eps=self.eps) * torch.cat(weights)


class FeedForward(nn.Module):
    """SwiGLU: a dense feed-forward."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden, 2 * inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor, fixed_shapes: bool = False) -> Tensor:  # noqa: ARG002 (its shapes are always x's)
        """x `[R, L, H]` -> `[R, L, H]`."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward with residual connections.

    `mlp(x, fixed_shapes)`: the feed-forward, `[R, L, H]` -> `[R, L, H]`. `fixed_shapes`: see `Backbone.forward`.
    """

    def __init__(self, config: ModelConfig, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = mlp
        self._all_reduce: AllReduce = _single_rank

    def make_tensor_parallel(self, all_reduce: AllReduce) -> None:
        """Makes this layer one `Shard` of a layer."""
        self._all_reduce = all_reduce

    def forward(self, x: Tensor, rotation: Rotation, layer: int, attend: Attend, fixed_shapes: bool = False) -> Tensor:
        """x `[R, L, H]` -> `[R, L, H]`; `layer` is passed on to `attend`."""
        x = x + self._all_reduce(self.self_attn(self.input_layernorm(x), rotation, layer, attend))
        out: Tensor = x + self._all_reduce(self.mlp(self.post_attention_layernorm(x), fixed_shapes))
        return out


def _single_rank(x: Tensor) -> Tensor:
    return x
