"""What a checkpoint's config.json says, checked and frozen.

Reads the published SDAR and SDAR-MRP layouts (Qwen3's keys plus `block_size`, `mask_token_id`,
`num_nextn_predict_layers`). Knows no weights and no files: `weights.py` hands it the parsed JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.errors import CheckpointError

DEFAULT_BLOCK_SIZE = 4
DEFAULT_MASK_TOKEN_ID = 151669


@dataclass(frozen=True, slots=True)
class MrpConfig:
    """The MRP module of a checkpoint.

    `residual`: the module's output is added to the anchor hidden state (else it replaces it, the
    published `-direct` checkpoints). `scale` multiplies the output (the published two-step
    checkpoints are decoded with 2). Both belong to the checkpoint, never to a request.
    """

    num_layers: int
    residual: bool = True
    scale: float = 1.0
    default_steps: int = 2


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of an SDAR backbone (Qwen3 architecture) and, if there is one, of its MRP module."""

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

    @property
    def num_kv_layers(self) -> int:
        """Layers that keep KV: the backbone's and MRP's."""
        return self.num_layers + (self.mrp.num_layers if self.mrp else 0)


def parse_config(raw: Mapping[str, Any], *, block_size: int | None = None) -> ModelConfig:
    """Builds a `ModelConfig` from a parsed config.json.

    `block_size` overrides the checkpoint's (the published 4B MRP says 4 and was trained with 16).
    Raises CheckpointError naming the key that is missing or not supported.
    """
    _refuse_unsupported(raw)
    heads = _integer(raw, "num_attention_heads")
    kv_heads = _optional(raw, "num_key_value_heads", heads)
    if kv_heads < 1 or heads % kv_heads:
        raise CheckpointError(f"config.json: {heads} attention heads are not a multiple of {kv_heads} key-value heads")
    hidden = _integer(raw, "hidden_size")
    head_dim = _optional(raw, "head_dim", hidden // heads)
    if head_dim < 2 or head_dim % 2:
        raise CheckpointError(f"config.json: head_dim is {head_dim}, expected an even number")
    vocab = _integer(raw, "vocab_size")
    mask = _optional(raw, "mask_token_id", DEFAULT_MASK_TOKEN_ID)
    if not 0 <= mask < vocab:
        raise CheckpointError(f"config.json: mask_token_id {mask} is outside the vocabulary of {vocab}")
    block = block_size or _optional(raw, "block_size", DEFAULT_BLOCK_SIZE)
    if not 1 <= block <= 128:
        raise CheckpointError(f"block size {block} is not supported: allowed are 1 to 128")
    return ModelConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=_integer(raw, "intermediate_size"),
        num_layers=_integer(raw, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block,
        mask_token_id=mask,
        eos_token_ids=_token_ids(raw.get("eos_token_id")),
        max_positions=_optional(raw, "max_position_embeddings", 32768),
        rope_theta=_rope_theta(raw),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        mrp=_mrp(raw, block),
    )


def _mrp(raw: Mapping[str, Any], block_size: int) -> MrpConfig | None:
    layers = _optional(raw, "num_nextn_predict_layers", 0)
    modules = _optional(raw, "num_mrp_heads", 1 if layers else 0)
    if not layers or not modules:
        return None
    if modules != 1:
        raise CheckpointError(f"config.json: num_mrp_heads is {modules}, only 1 is supported")
    steps = _optional(raw, "mrp_default_steps", min(2, block_size))
    if not 1 <= steps <= block_size:
        raise CheckpointError(f"config.json: mrp_default_steps is {steps}, allowed are 1 to {block_size}")
    return MrpConfig(
        num_layers=layers,
        residual=bool(raw.get("mrp_residual", True)),
        scale=float(raw.get("mrp_scale", 1.0)),
        default_steps=steps,
    )


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    if raw.get("num_experts") or raw.get("num_local_experts"):
        raise CheckpointError("config.json describes a mixture of experts, which is not supported")
    if raw.get("attention_bias"):
        raise CheckpointError("config.json: attention_bias is true, which is not supported")
    if raw.get("use_sliding_window"):
        raise CheckpointError("config.json: use_sliding_window is true, which is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"config.json: hidden_act is {raw['hidden_act']!r}, only 'silu' is supported")
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise CheckpointError(f"config.json: rope type {kind!r} is not supported, only 'default' is")


def _rope_theta(raw: Mapping[str, Any]) -> float:
    parameters = raw.get("rope_parameters") or {}
    return float(raw.get("rope_theta") or parameters.get("rope_theta") or 10000.0)


def _integer(raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"config.json: {key} is {value!r}, expected a positive integer")
    return value


def _optional(raw: Mapping[str, Any], key: str, default: int) -> int:
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise CheckpointError(f"config.json: {key} is {value!r}, expected an integer")
    return value


def _token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, int):
        return (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(item, int) for item in value):
        return tuple(value)
    raise CheckpointError(f"config.json: eos_token_id is {value!r}, expected an integer or a list of integers")
