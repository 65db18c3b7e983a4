"""Tensor parallelism: the shard of a model that each rank holds. Needs no torch.

A layer is divided by attention heads and by the inner numbers of its feed-forward, each expert's included. A rank's
result of a layer is one summand, and an all-reduce adds them up. Embedding, norms, routers and the output head are
whole on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.errors import SettingsError
from service.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Shard:
    """The shard of rank `rank` of `size`. With one rank it is the whole model."""

    rank: int = 0
    size: int = 1

    def divide(self, config: ModelConfig) -> ModelConfig:
        """The config of this shard of a model. With fewer key-value heads than ranks, several ranks hold one head.

        SettingsError, which names `tensor_parallel_size`, if a model of these sizes cannot be divided by that number.
        """
        if self.size == 1:
            return config
        if not _divides(self.size, config):
            allowed = ", ".join(map(str, possible_sizes(config)))
            raise SettingsError(
                f"tensor_parallel_size is {self.size}, this checkpoint allows {allowed}: "
                f"{config.num_heads} heads, {config.num_kv_heads} key-value heads and the inner sizes of its "
                "feed-forwards are divided",
                param="tensor_parallel_size",
            )
        experts = config.experts
        if experts is not None:
            inner, shared = experts.intermediate_size // self.size, experts.shared_size // self.size
            experts = replace(experts, intermediate_size=inner, shared_size=shared)
        return replace(
            config,
            num_heads=config.num_heads // self.size,
            num_kv_heads=config.num_kv_heads // self.num_kv_pieces(config),
            intermediate_size=config.intermediate_size // self.size,
            experts=experts,
        )

    def num_kv_pieces(self, config: ModelConfig) -> int:
        """The number of pieces of a whole model's key-value heads: one a rank, or one a head."""
        return min(self.size, config.num_kv_heads)

    def piece(self, length: int, pieces: int) -> slice:
        """This rank's piece of a dimension of `length` numbers that is divided into `pieces`."""
        start = self.rank * pieces // self.size * (length // pieces)
        return slice(start, start + length // pieces)


def possible_sizes(config: ModelConfig) -> list[int]:
    """The numbers of ranks that a model can be divided by."""
    return [size for size in range(1, config.num_heads + 1) if _divides(size, config)]


def _divides(size: int, config: ModelConfig) -> bool:
    sizes = [config.num_heads, config.intermediate_size]
    if config.experts is not None:
        sizes += [config.experts.intermediate_size, config.experts.shared_size]
    heads = config.num_kv_heads
    return all(inner % size == 0 for inner in sizes) and (heads % size == 0 or size % heads == 0)
