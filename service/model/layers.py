"""Qwen3's decoder layers. Llama's have no norms of heads, Qwen2's have biases instead. Attention is the caller's.

Serving passes paged attention (`attention/`), training a dense masked one. The layers know neither a cache nor a mask.
Projections of the same input are one matrix (`qkv_proj`, `gate_up_proj`): on small batches a forward is bound by the
number of operations. On CUDA, Triton kernels (`triton_layers.py`) do the operations between products. Shapes:
`[R, L, H]`, rows, tokens per row, hidden. Source: Qwen3 (transformers' `modeling_qwen3`), which SDAR keeps.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from service.model import triton_support
from service.model.config import ModelConfig
from service.model.layer_ops import HeadNorms, Heads, PagedAttend, Rotation, norm_and_rotate, rms_norm

#: attend(layer, q [R, L, heads, D], k [R, L, kv_heads, D], v [R, L, kv_heads, D]) -> [R, L, heads * D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
#: adds up a tensor over the tensor-parallel ranks
AllReduce = Callable[[Tensor], Tensor]


class Residual(NamedTuple):
    """Hidden states `[R, L, H]` as a sum that the next norm adds up: one operation does both. `change` None: 0."""

    x: Tensor
    change: Tensor | None = None


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


class SelfAttention(nn.Module):
    """Grouped-query attention. Every query and key head has an RMSNorm, unless the config has none."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, width, bias=config.qkv_bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps) if config.qk_norm else None for _ in range(2)
        )

    def forward(self, x: Tensor, rotation: Rotation, layer: int, attend: Attend) -> Tensor:
        heads, qkv = self._heads, self.qkv_proj.forward(x).unflatten(-1, (-1, self.head_dim))
        if by_kernel(x):
            from service.model import triton_layers

            pages = attend.kv_targets(layer) if isinstance(attend, PagedAttend) else None
            q, k, v = triton_layers.norm_and_rotate(qkv, heads, rotation, pages)
            seen = attend.read(layer, q, k, v) if isinstance(attend, PagedAttend) else attend(layer, q, k, v)
        else:
            seen = attend(layer, *norm_and_rotate(qkv, heads, rotation))
        out: Tensor = self.o_proj.forward(seen)
        return out

    @property
    def _heads(self) -> Heads:
        q_norm, k_norm = self.q_norm, self.k_norm
        norms = HeadNorms(q_norm.weight, k_norm.weight, q_norm.eps or 0.0) if q_norm and k_norm else None
        return Heads(self.heads, self.kv_heads, norms)


class FeedForward(nn.Module):
    """SwiGLU: a dense feed-forward."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden, 2 * inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor, fixed_shapes: bool = False) -> Tensor:  # noqa: ARG002 (its shapes are always x's)
        out: Tensor = self.down_proj.forward(silu_and_mul(self.gate_up_proj.forward(x)))
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
        self._all_reduce: AllReduce = lambda x: x  # a single rank

    def make_tensor_parallel(self, all_reduce: AllReduce) -> None:
        self._all_reduce = all_reduce

    def forward(
        self, x: Residual, rotation: Rotation, layer: int, attend: Attend, fixed_shapes: bool = False
    ) -> Residual:
        """x -> the layer's output, both as sums; `layer` is passed on to `attend`."""
        normed, total = add_norm(*x, self.input_layernorm)
        seen = self._all_reduce(self.self_attn.forward(normed, rotation, layer, attend))
        normed, total = add_norm(total, seen, self.post_attention_layernorm)
        return Residual(total, self._all_reduce(self.mlp(normed, fixed_shapes)))


# --- operations with a Triton kernel for CUDA. Without the kernels a layer is twenty CUDA kernels ---------


def by_kernel(x: Tensor) -> bool:
    """Whether a forward takes the kernels: on CUDA, outside training and autocast."""
    return (
        x.is_cuda
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cuda")
        and triton_support.use_triton(x.device, x.dtype)
    )


def add_norm(x: Tensor, change: Tensor | None, norm: nn.RMSNorm) -> tuple[Tensor, Tensor]:
    """x, change `[..., H]` -> the norm of their sum, and their sum. The kernel overwrites x by the sum."""
    if change is None:
        return rms_norm(x, norm), x
    if by_kernel(x):
        from service.model import triton_layers

        return triton_layers.add_norm(x, change, norm.weight, norm.eps or 0.0), x
    x = x + change
    return rms_norm(x, norm), x


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """`[..., 2 I]`, gate before up -> silu(gate) * up, `[..., I]`."""
    if by_kernel(gate_up):
        from service.model import triton_layers

        return triton_layers.silu_and_mul(gate_up)
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up if torch.is_grad_enabled() else F.silu(gate).mul_(up)
