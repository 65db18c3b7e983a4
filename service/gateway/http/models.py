"""The answer of GET /v1/models: the model, its limits, its modes and the presets of `quality`.

As in `answers.py`, the pydantic models are the schema and the functions build plain dictionaries of that shape.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from service.quality.presets import Presets
from service.quality.schema import Measured, Plan, QualityName, Row
from service.wire import ModelCard


class Quality(BaseModel):
    """The presets of `quality`: the plans by name, and the calibration they come from.

    `missing`: why there are no presets.
    """

    presets: dict[QualityName, Plan]
    missing: str | None
    measured: Measured | None
    frontier: list[Row]


class Model(BaseModel):
    """The served model and its limits."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    block_size: int
    vocab_size: int
    max_model_len: int
    mrp: dict[str, Any] | None
    modes: list[str]
    default_mode: str
    defaults: dict[str, dict[str, float | str]]
    chat_template: bool
    quality: Quality


class Models(BaseModel):
    """The answer of GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


def models_json(card: ModelCard) -> dict[str, Any]:
    """OpenAI's list with one model, and the fields that this service adds."""
    model = {"id": card.name, "object": "model", "created": 0, "owned_by": "mrp-serve"}
    model |= {"block_size": card.block_size, "vocab_size": card.vocab_size, "max_model_len": card.max_model_len}
    model |= {"mrp": card.mrp, "modes": card.modes, "default_mode": card.default_mode}
    model |= {"defaults": card.defaults, "chat_template": card.chat}
    model |= {"quality": _quality(card.quality)}
    return {"object": "list", "data": [model]}


def _quality(presets: Presets) -> dict[str, Any]:
    return {
        "presets": {name: plan.model_dump() for name, plan in presets.plans.items()},
        "missing": presets.missing,
        "measured": presets.measured,
        "frontier": presets.frontier,
    }
