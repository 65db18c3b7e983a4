"""Feed-forwards with experts: a router (`routers.py`) sends each token to a few of them.

Tokens are sorted by expert. Each expert is one product over its tokens; experts without tokens cost nothing.
Shapes: T tokens, `k` experts of a token, H hidden, I an expert's inner size. Source: Qwen3-MoE (transformers'
`modeling_qwen3_moe`), which SDAR-MoE keeps. LLaDA2 adds shared experts.
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from service.model.config import ExpertsConfig
from service.model.layers import FeedForward
from service.model.quantization.matrices import QuantizedMatrices
from service.model.routers import make_router

#: torch's product of groups of rows with a matrix each, which reads the groups' ends on the device; None in older torch
_grouped_mm = getattr(F, "grouped_mm", None)


class SparseFeedForward(nn.Module):
    """A router and its experts, and those that every token goes to: one dense feed-forward."""

    def __init__(self, hidden: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.gate = make_router(hidden, config)
        self.experts = Experts(hidden, config)
        self.shared_experts = FeedForward(hidden, config.shared_size) if config.shared_size else None

    def forward(self, x: Tensor, same_shapes: bool = False) -> Tensor:
        """x `[R, L, H]` -> `[R, L, H]`. `same_shapes`: see `Backbone.forward`."""
        tokens = x.flatten(0, -2)
        weights, chosen = self.gate(tokens)
        answers = self.experts(tokens, chosen, same_shapes)
        out = torch.bmm(weights.to(answers.dtype)[:, None], answers).view_as(x)
        return out if self.shared_experts is None else out + self.shared_experts(x)


class Experts(nn.Module):
    """SwiGLU feed-forwards beside each other: `gate_up_proj` `[E, 2 I, H]`, `down_proj` `[E, H, I]`.

    Each is a parameter, or a layer with 8-bit matrices in its place.
    """

    gate_up_proj: Tensor | QuantizedMatrices
    down_proj: Tensor | QuantizedMatrices

    def __init__(self, hidden: int, config: ExpertsConfig) -> None:
        super().__init__()
        inner = config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(config.number, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(config.number, hidden, inner))
        for weight in self.parameters():
            nn.init.uniform_(weight, -1 / math.sqrt(weight.shape[-1]), 1 / math.sqrt(weight.shape[-1]))

    def forward(self, tokens: Tensor, chosen: Tensor, same_shapes: bool) -> Tensor:
        """tokens `[T, H]`, their experts `[T, k]` -> what each expert says of its token, `[T, k, H]`."""
        return self._over_all(tokens, chosen) if same_shapes else self._over_own(tokens, chosen)

    def _over_own(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """Each expert over its own tokens: the work that is needed, in shapes that depend on all tokens together."""
        number, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(number, self._numbers(number), right=True, out_int32=True)
        inner = _activated(_grouped(tokens[order // chosen.shape[1]], self.gate_up_proj, ends))
        answers = _grouped(inner, self.down_proj, ends)
        out: Tensor = answers[order.argsort()].unflatten(0, chosen.shape)
        return out

    def _over_all(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """Experts over all tokens, so that every product's shape depends on T alone.

        On a CPU only the experts that have tokens, one after another. Elsewhere all of them in one product: to learn
        which have tokens would be to wait for the device.
        """
        if tokens.device.type == "cpu":
            asked = chosen.unique()
            answers = torch.stack([self._one(tokens, number) for number in asked.tolist()])
            chosen = torch.searchsorted(asked, chosen)
        else:
            answers = self._by_all(tokens)
        return answers[chosen, torch.arange(len(tokens), device=tokens.device)[:, None]]

    def _by_all(self, tokens: Tensor) -> Tensor:
        """tokens `[T, H]` -> what each expert says of each, `[E, T, H]`."""
        if isinstance(self.gate_up_proj, Tensor) and isinstance(self.down_proj, Tensor):
            inner = _activated(torch.matmul(tokens, self.gate_up_proj.transpose(1, 2)))
            return torch.bmm(inner, self.down_proj.transpose(1, 2))
        number = len(self.gate_up_proj)
        ends = ((self._numbers(tokens) + 1) * len(tokens)).int()
        inner = _activated(_grouped(tokens.repeat(number, 1), self.gate_up_proj, ends))
        answers: Tensor = _grouped(inner, self.down_proj, ends).unflatten(0, (number, -1))
        return answers

    def _one(self, tokens: Tensor, number: int) -> Tensor:
        return _times(_activated(_times(tokens, self.gate_up_proj, number)), self.down_proj, number)

    def _numbers(self, beside: Tensor) -> Tensor:
        return torch.arange(len(self.gate_up_proj), device=beside.device)


def _activated(gate_up: Tensor) -> Tensor:
    """`[..., 2 I]` -> `[..., I]`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _times(rows: Tensor, matrices: Tensor | QuantizedMatrices, number: int) -> Tensor:
    """rows `[M, A]` times one of the matrices `[E, B, A]` -> `[M, B]`."""
    return F.linear(rows, matrices[number]) if isinstance(matrices, Tensor) else matrices.product(rows, number)


def _grouped(rows: Tensor, matrices: Tensor | QuantizedMatrices, ends: Tensor) -> Tensor:
    """rows `[P, A]`, sorted by group, matrices `[E, B, A]`, where each group ends `[E]` int32 -> `[P, B]`."""
    if not isinstance(matrices, Tensor):
        return matrices.grouped(rows, ends)
    if rows.device.type != "cpu" and _grouped_mm is not None and _has_kernel(matrices):
        return cast(Tensor, _grouped_mm(rows.to(matrices.dtype), matrices.transpose(1, 2), offs=ends))
    stops = ends.tolist()  # on a GPU this waits for it
    groups = zip([0, *stops], stops, matrices, strict=False)
    return torch.cat([F.linear(rows[start:stop], matrix) for start, stop, matrix in groups if stop > start])


def _has_kernel(matrices: Tensor) -> bool:
    """Whether torch's grouped product takes such matrices `[E, B, A]`: bfloat16, and rows of whole 16 bytes."""
    return matrices.dtype == torch.bfloat16 and all(size % 8 == 0 for size in matrices.shape[1:])
