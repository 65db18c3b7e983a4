"""The config of a checkpoint, checked and frozen. Families (`families/`) make it from config.json."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MrpConfig:
    """The MRP module of a checkpoint.

    `residual`: the module's output is added to the anchor hidden state; in the published `-direct` checkpoints it
    replaces that state. `scale` multiplies the output; the published two-step checkpoints are decoded with 2.
    """

    num_layers: int
    residual: bool = True
    scale: float = 1.0
    default_steps: int = 2


@dataclass(frozen=True, slots=True)
class GroupsConfig:
    """Experts in groups: a token's experts are all in its `per_token` best of `num_groups` groups of equal size.

    `scale`: the factor of the weights of a token's experts.
    """

    num_groups: int
    per_token: int
    scale: float


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The experts of a backbone.

    Each token goes to `per_token` of `num_experts` experts. `layers`: which layers have experts; the others are dense.
    `normalized`: the weights of a token's experts add up to 1, before `groups.scale`. `shared_size`: the inner size of
    the experts that every token goes to, together; 0 for none. `groups`: None for a router that knows no groups.
    """

    num_experts: int
    per_token: int
    intermediate_size: int
    layers: frozenset[int]
    normalized: bool
    shared_size: int = 0
    groups: GroupsConfig | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a backbone and, if there is one, of its MRP module.

    `family`: the `model_type` of config.json. `intermediate_size`: the inner size of dense layers, MRP's included.
    `quantization`: the scheme of the layers' weights (`quantization/`); None: they have the type of all weights.
    `scale_columns`: the number of columns of a quantized row that share a scale; None: all. `rotary_dim`: the number of
    rotated numbers of a head, the first ones; None: all.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
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
    quantization: str | None = None
    scale_columns: int | None = None
    rotary_dim: int | None = None

    @property
    def num_kv_layers(self) -> int:
        """Layers that keep KV: the backbone's and MRP's."""
        return self.num_layers + (self.mrp.num_layers if self.mrp else 0)

    @property
    def num_expert_layers(self) -> int:
        """Layers of the backbone that have experts."""
        return len(self.experts.layers) if self.experts else 0

    @property
    def num_unused_parameters(self) -> int:
        """The number of the backbone's parameters that a token does not use: the other experts."""
        if self.experts is None:
            return 0
        expert = 3 * self.hidden_size * self.experts.intermediate_size
        return self.num_expert_layers * (self.experts.num_experts - self.experts.per_token) * expert
