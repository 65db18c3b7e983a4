"""Mixture of experts: a router sends each token to a few feed-forwards.

Tokens are sorted by expert. Each expert is one product over its tokens; experts without tokens cost nothing.
Shapes: T tokens, `k` experts of a token, E experts, H hidden, I an expert's inner size. Sources: Qwen3-MoE
(transformers' `modeling_qwen3_moe`), which SDAR-MoE keeps, and LLaDA2's `modeling_llada2_moe`.
"""

import math
from functools import cache
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from service.model.config import ExpertsConfig, GroupsConfig, PoolConfig
from service.model.layers import FeedForward, silu_and_mul
from service.model.quantization.layers import QuantizedExperts
from service.model.triton_support import has_triton

#: torch's product of groups of rows with a matrix each, which reads the groups' ends on the device; None in older torch
_grouped_mm = getattr(F, "grouped_mm", None)
#: added to a sum of scores before a division by it
_EPSILON = 1e-20


class SparseFeedForward(nn.Module):
    """A router, its experts, and the shared experts, which are one dense feed-forward."""

    def __init__(self, hidden: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.gate = _router(hidden, config)
        self.experts = Experts(hidden, config)
        self.shared_experts = FeedForward(hidden, config.shared_size) if config.shared_size else None

    def forward(self, x: Tensor, fixed_shapes: bool = False) -> Tensor:
        """x `[R, L, H]` -> `[R, L, H]`. `fixed_shapes`: see `Backbone.forward`."""
        tokens = x.flatten(0, -2)
        weights, chosen = self.gate(tokens)
        outputs = self.experts(tokens, chosen, fixed_shapes)
        out = torch.bmm(weights.to(outputs.dtype)[:, None], outputs).view_as(x)
        return out if self.shared_experts is None else out + self.shared_experts(x)


class Experts(nn.Module):
    """E SwiGLU feed-forwards: `gate_up_proj` `[E, 2 I, H]`, `down_proj` `[E, H, I]`.

    Each is a parameter, or an 8-bit layer instead.
    """

    gate_up_proj: Tensor | QuantizedExperts
    down_proj: Tensor | QuantizedExperts

    def __init__(self, hidden: int, config: ExpertsConfig) -> None:
        super().__init__()
        inner = config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(config.num_experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(config.num_experts, hidden, inner))
        for weight in self.parameters():
            nn.init.uniform_(weight, -1 / math.sqrt(weight.shape[-1]), 1 / math.sqrt(weight.shape[-1]))

    def forward(self, tokens: Tensor, chosen: Tensor, fixed_shapes: bool) -> Tensor:
        """tokens `[T, H]`, their experts `[T, k]` -> the output of each expert for its token, `[T, k, H]`."""
        if not len(tokens):  # in training: answers that begin in the first block have no clean part
            return tokens.new_empty(*chosen.shape, tokens.shape[1])
        return self._dense(tokens, chosen) if fixed_shapes else self._sparse(tokens, chosen)

    def _sparse(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """Each expert computes its tokens only. The shapes depend on all tokens together."""
        expert, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(expert, self._indices(expert), right=True, out_int32=True)
        inner = silu_and_mul(_grouped(tokens[order // chosen.shape[1]], self.gate_up_proj, ends))
        outputs = _grouped(inner, self.down_proj, ends)
        out: Tensor = outputs[order.argsort()].unflatten(0, chosen.shape)
        return out

    def _dense(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """Each expert computes all tokens, so that every product's shape depends on T alone.

        On a CPU only the experts with tokens compute, one after another. Elsewhere all experts compute in one product:
        the host would have to wait for the device to name the experts with tokens.
        """
        if tokens.device.type == "cpu":
            used = chosen.unique()
            up, down = self.gate_up_proj, self.down_proj
            each = (_times(silu_and_mul(_times(tokens, up, expert)), down, expert) for expert in used.tolist())
            outputs = torch.stack(list(each))
            chosen = torch.searchsorted(used, chosen)
        else:
            outputs = self._all_experts(tokens)
        return outputs[chosen, torch.arange(len(tokens), device=tokens.device)[:, None]]

    def _all_experts(self, tokens: Tensor) -> Tensor:
        """tokens `[T, H]` -> the output of each expert, `[E, T, H]`."""
        if isinstance(self.gate_up_proj, Tensor) and isinstance(self.down_proj, Tensor):
            inner = silu_and_mul(torch.matmul(tokens, self.gate_up_proj.transpose(1, 2)))
            return torch.bmm(inner, self.down_proj.transpose(1, 2))
        experts = len(self.gate_up_proj)
        ends = ((self._indices(tokens) + 1) * len(tokens)).int()
        inner = silu_and_mul(_grouped(tokens.repeat(experts, 1), self.gate_up_proj, ends))
        outputs: Tensor = _grouped(inner, self.down_proj, ends).unflatten(0, (experts, -1))
        return outputs

    def _indices(self, like: Tensor) -> Tensor:
        return torch.arange(len(self.gate_up_proj), device=like.device)

    @property
    def waits(self) -> bool:
        """Whether the host waits for the device in a forward, to learn the number of tokens of each expert."""
        return not all(
            _has_kernel(matrices) if isinstance(matrices, Tensor) else has_triton(matrices.values.device)
            for matrices in (self.gate_up_proj, self.down_proj)
        )


def waits_for_experts(network: nn.Module) -> bool:
    """Whether any layer's experts make the host wait (`Experts.waits`). Such a forward cannot be captured."""
    return any(module.waits for module in network.modules() if isinstance(module, Experts))


def _times(rows: Tensor, matrices: Tensor | QuantizedExperts, expert: int) -> Tensor:
    """rows `[M, A]` times one of the matrices `[E, B, A]` -> `[M, B]`."""
    return F.linear(rows, matrices[expert]) if isinstance(matrices, Tensor) else matrices.product(rows, expert)


def _grouped(rows: Tensor, matrices: Tensor | QuantizedExperts, ends: Tensor) -> Tensor:
    """rows `[P, A]`, sorted by group, matrices `[E, B, A]`, the end of each group `[E]` int32 -> `[P, B]`."""
    if not isinstance(matrices, Tensor):
        return matrices.grouped(rows, ends)
    if _grouped_mm is not None and _has_kernel(matrices):
        return cast(Tensor, _grouped_mm(rows.to(matrices.dtype), matrices.transpose(1, 2), offs=ends))
    stops = ends.tolist()  # on a GPU this waits for it
    groups = zip([0, *stops], stops, matrices, strict=False)
    return torch.cat([F.linear(rows[start:stop], matrix) for start, stop, matrix in groups if stop > start])


def _has_kernel(matrices: Tensor) -> bool:
    """Whether torch's grouped product has a kernel for matrices `[E, B, A]`: bfloat16, and rows of whole 16 bytes.

    The device must have compute capability 9.0. For older ones torch copies the groups' ends to the host and waits.
    """
    if _grouped_mm is None or matrices.device.type != "cuda" or matrices.dtype != torch.bfloat16:
        return False
    return all(size % 8 == 0 for size in matrices.shape[1:]) and _capability(matrices.device) >= (9, 0)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


class SoftmaxRouter(nn.Module):
    """Qwen3-MoE's router: the experts of the largest probabilities."""

    def __init__(self, hidden: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.weight = _matrix(config.num_experts, hidden)
        self._per_token, self._normalized = config.per_token, config.normalized

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens `[T, H]` -> weights (at least fp32) and indices of experts, both `[T, k]`."""
        logits = F.linear(tokens, self.weight)
        probabilities = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        weights, chosen = probabilities.topk(self._per_token, dim=-1)
        return (weights / weights.sum(-1, keepdim=True) if self._normalized else weights), chosen


class SigmoidRouter(nn.Module):
    """LLaDA2's routers: sigmoid scores, and the best of the experts that `allowed` leaves.

    A bias of each expert counts for the choice, never for the weights. Everything is computed at least in fp32.
    """

    def __init__(self, hidden: int, config: ExpertsConfig, scale: float) -> None:
        super().__init__()
        self.weight = _matrix(config.num_experts, hidden)
        self.expert_bias = nn.Parameter(torch.zeros(config.num_experts))
        self._per_token, self._normalized, self._scale = config.per_token, config.normalized, scale

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens `[T, H]` -> weights (at least fp32) and indices of experts, both `[T, k]`."""
        exact = torch.promote_types(tokens.dtype, torch.float32)
        scores = F.linear(tokens.to(exact), self.weight.to(exact)).sigmoid()
        chosen = self.allowed(scores + self.expert_bias.to(exact)).topk(self._per_token, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if self._normalized:
            weights = weights / (weights.sum(-1, keepdim=True) + _EPSILON)
        return weights * self._scale, chosen

    def allowed(self, scores: Tensor) -> Tensor:
        """scores with bias `[T, E]` -> the same, with -inf for experts to which a token may not go."""
        raise NotImplementedError


class GroupedRouter(SigmoidRouter):
    """LLaDA2.0's and 2.1's router: experts of the best groups only. A group's score is the sum of its two best."""

    def __init__(self, hidden: int, config: ExpertsConfig, groups: GroupsConfig) -> None:
        super().__init__(hidden, config, groups.scale)
        self._groups = groups

    def allowed(self, scores: Tensor) -> Tensor:
        grouped = scores.unflatten(-1, (self._groups.num_groups, -1))
        best = grouped.topk(2, dim=-1).values.sum(-1).topk(self._groups.per_token, dim=-1).indices
        masked: Tensor = _only(best, grouped.mT).mT.flatten(-2)
        return masked


class BlockRouter(SigmoidRouter):
    """LLaDA2.2's router: a block's tokens share a pool of experts, those of the highest score at any of its tokens.

    Sequences come in whole blocks; only the last one of all may be shorter. Source: LLaDA2.2's report, section 2.2.
    """

    def __init__(self, hidden: int, config: ExpertsConfig, pool: PoolConfig) -> None:
        super().__init__(hidden, config, pool.scale)
        self._pool = pool

    def allowed(self, scores: Tensor) -> Tensor:
        size = self._pool.block_size
        blocks = F.pad(scores, (0, 0, 0, -len(scores) % size), value=-torch.inf).unflatten(0, (-1, size))
        best = blocks.amax(1).topk(self._pool.capacity, dim=-1).indices
        return _only(best, blocks).flatten(0, 1)[: len(scores)]


def _router(hidden: int, config: ExpertsConfig) -> SoftmaxRouter | SigmoidRouter:
    if isinstance(config.limit, GroupsConfig):
        return GroupedRouter(hidden, config, config.limit)
    return SoftmaxRouter(hidden, config) if config.limit is None else BlockRouter(hidden, config, config.limit)


def _only(columns: Tensor, scores: Tensor) -> Tensor:
    """scores `[B, N, C]` -> the same, with -inf outside the columns `[B, K]`."""
    excluded = torch.ones_like(scores[:, 0], dtype=torch.bool).scatter(-1, columns, False)
    return scores.masked_fill(excluded[:, None], -torch.inf)


def _matrix(num_experts: int, hidden: int) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(num_experts, hidden))
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    return weight
