"""Routers: which experts a token goes to, and with which weights. One class for each way to choose.

A router is called with tokens `[T, H]`. It answers with the weights and the numbers of each token's experts, both
`[T, k]`; weights are at least fp32. Sources: transformers' `modeling_qwen3_moe`; LLaDA2's `modeling_llada2_moe`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from service.model.config import ExpertsConfig, GroupsConfig

#: added to a sum of scores before a division by it
_LEAST = 1e-20


def make_router(hidden: int, config: ExpertsConfig) -> nn.Module:
    """The router that the experts' config asks for."""
    return SoftmaxRouter(hidden, config) if config.groups is None else GroupedRouter(hidden, config, config.groups)


class SoftmaxRouter(nn.Module):
    """Qwen3-MoE's: the experts of the largest chances."""

    def __init__(self, hidden: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.weight = _matrix(config.number, hidden)
        self._per_token, self._normalized = config.per_token, config.normalized

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens `[T, H]` -> weights and numbers of experts, both `[T, k]`."""
        logits = F.linear(tokens, self.weight)
        chances = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        weights, chosen = chances.topk(self._per_token, dim=-1)
        return (weights / weights.sum(-1, keepdim=True) if self._normalized else weights), chosen


class GroupedRouter(nn.Module):
    """LLaDA2's: sigmoid scores, and experts of the best groups alone.

    A bias of each expert counts for the choice, never for the weights. A group is as good as its two best experts
    together. Everything is computed at least in fp32.
    """

    def __init__(self, hidden: int, config: ExpertsConfig, groups: GroupsConfig) -> None:
        super().__init__()
        self.weight = _matrix(config.number, hidden)
        self.expert_bias = nn.Parameter(torch.zeros(config.number))
        self._per_token, self._normalized, self._groups = config.per_token, config.normalized, groups

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens `[T, H]` -> weights and numbers of experts, both `[T, k]`."""
        exact = torch.promote_types(tokens.dtype, torch.float32)
        scores = F.linear(tokens.to(exact), self.weight.to(exact)).sigmoid()
        chosen = self._within_groups(scores + self.expert_bias.to(exact)).topk(self._per_token, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if self._normalized:
            weights = weights / (weights.sum(-1, keepdim=True) + _LEAST)
        return weights * self._groups.scale, chosen

    def _within_groups(self, scores: Tensor) -> Tensor:
        """scores `[T, E]` -> the same, with -inf for the experts of groups that are not among the best."""
        grouped = scores.unflatten(-1, (self._groups.number, -1))
        best = grouped.topk(2, dim=-1).values.sum(-1).topk(self._groups.per_token, dim=-1).indices
        left_out = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, False)
        kept: Tensor = grouped.masked_fill(left_out[..., None], -torch.inf).flatten(-2)
        return kept


def _matrix(number: int, hidden: int) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(number, hidden))
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    return weight
