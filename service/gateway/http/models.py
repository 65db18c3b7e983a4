"""What GET /v1/models says: the model, its limits, its modes, and what `quality` stands for.

As in `answers.py`, the models are the schema, the functions build plain dictionaries of that shape.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from service.quality.presets import Presets
from service.quality.schema import Measured, Plan, QualityName, Row
from service.wire import ModelCard


class Quality(BaseModel):
    """What `quality` stands for: the plans by name, the calibration they come from, or why there is none."""

    presets: dict[QualityName, Plan]
    missing: str | None
    measured: Measured | None
    frontier: list[Row]


class Model(BaseModel):
    """What is served, and its limits."""

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
    """GET /v1/models: OpenAI's list of one, with what this service adds."""
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
