"""The config of a checkpoint, checked and frozen, and its shards for tensor parallelism. Needs no torch.

Families (`families/`) make the config from config.json. A layer is divided by attention heads and by the inner numbers
of its feed-forward, each expert's included. A rank's result of a layer is one summand, and an all-reduce adds them up.
Embedding, norms, routers and the output head are whole on every rank.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import Struct

from service.errors import SettingsError


@dataclass(frozen=True, slots=True)
class MrpConfig:
    """The MRP module of a checkpoint."""

    num_layers: int
    residual: bool = True  # whether the output is added to the anchor hidden state. In `-direct` it replaces it
    scale: float = 1.0  # multiplies the output. The published two-step checkpoints are decoded with 2
    default_steps: int = 2


class GroupsConfig(Struct, frozen=True, tag=True):
    """Experts in groups: a token's experts are all in its `per_token` best of `num_groups` groups of equal size."""

    num_groups: int
    per_token: int
    scale: float  # the factor of the weights of a token's experts


class PoolConfig(Struct, frozen=True, tag=True):
    """Experts by block: a block's tokens share the `capacity` experts that any of them scores highest."""

    capacity: int
    block_size: int
    scale: float  # as of `GroupsConfig`


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The experts of a backbone. Each token goes to `per_token` of `num_experts` experts."""

    num_experts: int
    per_token: int
    intermediate_size: int
    layers: frozenset[int]  # the layers with experts; the others are dense
    normalized: bool  # whether the weights of a token's experts add up to 1, before `limit.scale`
    shared_size: int = 0  # the inner size of the experts that every token goes to, together; 0 for none
    limit: GroupsConfig | PoolConfig | None = None  # to which experts a token may go; None: to all


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a backbone and, if there is one, of its MRP module."""

    family: str  # a name in `FAMILIES`
    vocab_size: int
    hidden_size: int
    intermediate_size: int  # the inner size of dense layers, MRP's included
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    mask_token_id: int
    eos_token_ids: tuple[int, ...]
    max_positions: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    mrp: MrpConfig | None
    experts: ExpertsConfig | None = None
    quantization: str | None = None  # the scheme of the layers' weights; None: they have the type of all weights
    scale_columns: int | None = None  # the columns of a quantized row that share a scale; None: all
    rotary_dim: int | None = None  # the rotated numbers of a head, the first ones; None: all
    qk_norm: bool = True  # whether each head of queries and keys has a norm
    qkv_bias: bool = False  # whether the projections to queries, keys and values have biases
    #: Of a model whose output at a position predicts the next token (`shifted`): a forward reveals tokens of the
    #: leftmost sub-block of this size that has masks. None: the output at a mask predicts the mask's own token.
    sub_block_size: int | None = None
    #: the tokens by which the model deletes a position and splits one; None: it was not trained for that
    edit_token_ids: tuple[int, int] | None = None
    #: Of a strictly causal model, whose outputs predict the next token, too: the masks behind the leftmost one that a
    #: forward reads. Their number is training's. A block is a page then. None: the mask is block-causal.
    draft_masks: int | None = None

    @property
    def causal(self) -> bool:
        """Whether a token sees no later one in its block either, so that a block is filled from left to right."""
        return self.draft_masks is not None

    @property
    def shifted(self) -> bool:
        """Whether the output at a position predicts the next token, so that a block predicts the next one's first."""
        return self.sub_block_size is not None or self.causal

    def max_read(self, masked: int) -> int:
        """The positions that a forward reads of a block with `masked` masks, at most."""
        if self.sub_block_size is not None:
            return (masked - 1) % self.sub_block_size + 1  # the sub-blocks to the right are masks only
        return masked if self.draft_masks is None else 1 + self.draft_masks

    @property
    def num_kv_layers(self) -> int:
        """Layers that keep KV: the backbone's and MRP's."""
        return self.num_layers + (self.mrp.num_layers if self.mrp else 0)

    @property
    def num_expert_layers(self) -> int:
        return len(self.experts.layers) if self.experts else 0

    @property
    def num_unused_parameters(self) -> int:
        """The number of the backbone's parameters that a token does not use: the other experts."""
        if self.experts is None:
            return 0
        expert = 3 * self.hidden_size * self.experts.intermediate_size
        return self.num_expert_layers * (self.experts.num_experts - self.experts.per_token) * expert


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


class CheckedUpdate(NamedTuple):
    """Weights that can replace the served ones."""

    folders: tuple[str, ...]  # the folders that are still needed, the last one the newest
    has_mrp: bool  # whether the newest folder has weights of MRP
