"""The answer of GET /v1/models: the model, its limits, its modes and the presets of `quality`.

OpenAI's clients read `data`, Anthropic's also `display_name` and `has_more`, Codex `models`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired, cast

from typing_extensions import TypedDict

from service.decode.knobs import AUTO, Knob, KnobValue, knobs_in
from service.decode.modes import MODES
from service.messages.replica_status import Example, ModelCard
from service.quality.schema import Measured, PlanResult, PresetPlan, QualityName

_KnobType = Literal["integer", "number", "string"]
_TYPES: Mapping[type[KnobValue], _KnobType] = {int: "integer", float: "number", str: "string"}


class Quality(TypedDict):
    """The presets of `quality`: the plans by name, and the calibration they come from.

    `presets`: the plans of each quality at temperature 0. `sampled_presets`: those at higher temperatures. `missing`:
    why there are no presets.
    """

    presets: Mapping[QualityName, Sequence[PresetPlan]]
    sampled_presets: Mapping[QualityName, Sequence[PresetPlan]]
    missing: str | None
    measured: Measured | None
    frontier: Sequence[PlanResult]


class KnobLimits(TypedDict):
    """A knob of a mode: its type, its range and its default. A limit of null is none.

    `choices`: texts that are allowed; beside numbers, if the type is not string. `default`: null if it is not set.
    """

    type: _KnobType
    description: str
    minimum: float | None
    exclusive_minimum: float | None
    maximum: float | None
    choices: list[str]
    default: KnobValue | None


class ModeInfo(TypedDict):
    """The summary of a mode, and its knobs by name."""

    summary: str
    knobs: dict[str, KnobLimits]


class CardExample(TypedDict):
    """A prompt from the checkpoint's card: `messages` of a chat, or a `text` to continue."""

    title: str
    text: NotRequired[str | None]
    messages: NotRequired[Sequence[Mapping[str, str]]]


class ServedWeights(TypedDict):
    """The weights that answer, and their version (0: the weights of the start).

    `model`: the last part of their name. A hub model's ends with `@` and its commit.
    """

    model: str
    version: int


class ModelName(TypedDict):
    """A name of the served model, as OpenAI and Anthropic list it. `root`: its name in answers."""

    id: str
    object: Literal["model"]
    type: Literal["model"]
    display_name: str
    created: int
    created_at: str
    owned_by: str
    root: str
    max_model_len: int


class Model(ModelName):
    """The served model and its limits. `tools`: the format of calls, null if it takes no tools."""

    weights: ServedWeights
    block_size: int
    vocab_size: int
    mrp: Mapping[str, Any] | None
    modes: Sequence[str]
    default_mode: str
    defaults: Mapping[str, Mapping[str, KnobValue]]
    mode_info: dict[str, ModeInfo]
    chat_template: bool
    tools: str | None
    thinking: bool
    examples: list[CardExample]
    quality: Quality


class Models(TypedDict):
    """The answer of GET /v1/models. `models`: empty, so Codex uses its own instructions and options.

    `data`: the model with all fields, then its further names.
    """

    object: Literal["list"]
    data: list[Model | ModelName]
    has_more: Literal[False]
    first_id: str
    last_id: str
    models: list[Any]


def models_json(card: ModelCard) -> Models:
    """The list of the model's names, the fields of all clients, and the fields that this service adds."""
    return {
        "object": "list",
        "data": [model_json(card), *(_model_name(card, alias) for alias in card.aliases)],
        "has_more": False,
        "first_id": card.name,
        "last_id": (card.name, *card.aliases)[-1],
        "models": [],
    }


def _model_name(card: ModelCard, name: str) -> ModelName:
    created = datetime.fromtimestamp(card.created, UTC)
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": card.created,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "owned_by": "mrp-serve",
        "root": card.name,
        "max_model_len": card.max_model_len,
    }


def model_json(card: ModelCard, name: str | None = None) -> Model:
    """The served model. `name`: the name by which it is called."""
    return {
        **_model_name(card, name or card.name),
        "weights": {"model": card.weights.name, "version": card.weights.version},
        "block_size": card.block_size,
        "vocab_size": card.vocab_size,
        "mrp": card.mrp,
        "modes": card.modes,
        "default_mode": card.default_mode,
        "defaults": card.defaults,
        "chat_template": card.chat,
        "tools": card.tool_format,
        "thinking": card.thinking is not None,
        "mode_info": {mode: _mode(mode, card) for mode in card.modes},
        "examples": [_example(example) for example in card.examples],
        "quality": {
            "presets": card.quality.plans,
            "sampled_presets": card.quality.sampled_plans,
            "missing": card.quality.missing,
            "measured": cast(Measured | None, card.quality.measured),
            "frontier": cast(Sequence[PlanResult], card.quality.frontier),
        },
    }


def _mode(mode: str, card: ModelCard) -> ModeInfo:
    summary = (MODES[mode].__doc__ or "").strip().partition("\n")[0]
    defaults = card.defaults.get(mode, {})
    knobs = {name: _limits(knob, card.block_size, defaults.get(name)) for name, knob in knobs_in(MODES[mode]).items()}
    return {"summary": summary, "knobs": knobs}


def _limits(knob: Knob, block_size: int, default: KnobValue | None) -> KnobLimits:
    return {
        "type": _TYPES[knob.kind],
        "description": knob.help,
        "minimum": knob.minimum,
        "exclusive_minimum": knob.above,
        "maximum": block_size if knob.in_block else knob.maximum,
        "choices": [*knob.choices, *([AUTO] if knob.auto else [])],
        "default": default,
    }


def _example(example: Example) -> CardExample:
    if example.messages is not None:
        return {"title": example.title, "messages": example.messages}
    return {"title": example.title, "text": example.text}
