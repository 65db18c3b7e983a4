"""The calibration file, `quality.json`: its fields, reading it, writing it. docs/quality.md explains them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from msgspec.structs import asdict
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from service.decode.knobs import KnobValue
from service.decode.mode import DecodingMode
from service.decode.registry import default_mode, make_mode
from service.errors import CheckpointError, InvalidRequest

#: name of the file in the checkpoint's folder
FILE_NAME = "quality.json"
VERSION = 4

QualityName = Literal["lossless", "balanced", "fast"]
QUALITIES: tuple[QualityName, ...] = get_args(QualityName)

Share = Annotated[float, Field(ge=0, le=1)]
Difference = Annotated[float, Field(ge=-1, le=1)]
NonNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Temperature = Annotated[float, Field(ge=0, le=100)]


def file_name(quantization: str | None = None, activation_parts: int = 1) -> str:
    """Such as `quality.json`, with quantized matrices `quality.fp8.json`, with two parts `quality.w8a8-2.json`."""
    parts = "" if activation_parts == 1 else f"-{activation_parts}"
    return FILE_NAME if quantization is None else f"quality.{quantization}{parts}.json"


def knobs_of(mode: DecodingMode) -> dict[str, KnobValue]:
    """The knobs that are set in `mode`."""
    return {name: value for name, value in asdict(mode).items() if value is not None}


class _FilePart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Plan(_FilePart):
    """A mode and its knobs. A knob that is not named has the default of its mode's class."""

    mode: str
    knobs: dict[str, KnobValue] = Field(default_factory=dict)

    @classmethod
    def from_mode(cls, mode: DecodingMode) -> Plan:
        return cls(mode=mode.name, knobs=knobs_of(mode))

    @property
    def decoding_mode(self) -> DecodingMode:
        """The mode for the engine. InvalidRequest for an unknown mode or knob."""
        return make_mode(self.mode, self.knobs)

    @property
    def name(self) -> str:
        """The plan as text, such as `remask threshold=0.5`."""
        return " ".join([self.mode, *(f"{knob}={value}" for knob, value in self.knobs.items())])


class PresetPlan(Plan):
    """A plan of a preset. `tokens_per_forward` counts tokens up to the end token, by forwards of the backbone."""

    tokens_per_forward: Rate


#: the plan with which every preset begins; a request that names no mode runs it, too
LOSSLESS = Plan.from_mode(default_mode())


class Identity(_FilePart):
    """The checkpoint that was measured: the values on which its answers depend."""

    block_size: Positive
    mrp: dict[str, bool | float] | None = Field(description="residual and scale; null without MRP")
    weights: str = Field(description="fingerprint of the weights: presets.py")
    quantization: str | None = Field(None, description="the form in which the layers' matrices are kept")
    activation_parts: Positive = Field(1, description="ranks that each make 8 bits of their part of the activations")


class Measured(_FilePart):
    """The circumstances of a measurement."""

    at: str = Field(description="date")
    model: str
    prompts: Positive
    prompts_sha256: str
    scorer: str
    max_new_tokens: Positive
    device: str
    dtype: str
    temperatures: list[Temperature] = Field(
        default_factory=lambda: [0.0], min_length=1, description="at which accuracy was measured, ascending from 0"
    )
    how: str = Field(description="the same in words")


class Margins(_FilePart):
    """The presets' allowed losses of accuracy against static."""

    balanced: Share = 0.01
    fast: Share = 0.05


class _Compared(_FilePart):
    """Counts of answers, and the difference from static's on the same prompts."""

    prompts: Positive
    right: NonNegative
    gained: NonNegative = Field(description="answers that are right here and wrong in static")
    lost: NonNegative = Field(description="answers that are wrong here and right in static")
    difference: Difference = Field(description="accuracy less static's on the same prompts")
    difference_low: Difference
    difference_high: Difference


class SampledResult(_Compared):
    """The accuracy of one plan at a temperature above 0, against static's at that temperature."""

    temperature: Temperature


class PlanResult(_Compared):
    """The result of one plan. `prompts`, `right`, `gained`, `lost`, `identical` count answers. The rest are estimates.

    They are of temperature 0. `sampled` has the other temperatures, empty where no preset could allow the plan.
    A `lossless` plan gives static's answers by construction, at any temperature. It answers only some of the prompts,
    and its accuracy is static's.
    """

    plan: Plan
    lossless: bool
    identical: NonNegative = Field(description="answers with the same tokens as static's")
    accuracy: Share
    accuracy_low: Share
    accuracy_high: Share
    tokens_per_forward: Rate = Field(description="up to the end token, per denoise or verify forward")
    sampled: list[SampledResult] = Field(default_factory=list, description="by ascending temperature")

    @property
    def sampled_difference_low(self) -> float:
        """The lowest `difference_low` of the temperatures above 0. -1 if nothing is known."""
        if self.lossless:
            return 0.0
        return min((result.difference_low for result in self.sampled), default=-1.0)

    @property
    def preset_plan(self) -> PresetPlan:
        return PresetPlan(**self.plan.model_dump(), tokens_per_forward=self.tokens_per_forward)


class QualityFile(_FilePart):
    """The whole file. `presets` has the plans by name, `sampled_presets` has them for temperatures above 0."""

    version: Literal[4]
    checkpoint: Identity
    measured: Measured
    margins: Margins
    presets: dict[QualityName, list[PresetPlan]]
    sampled_presets: dict[QualityName, list[PresetPlan]]
    warnings: list[str]
    rows: list[PlanResult]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for part, presets in (("presets", self.presets), ("sampled_presets", self.sampled_presets)):
            if missing := set(QUALITIES) - set(presets):
                raise ValueError(f"{part} lack {', '.join(sorted(missing))}")
            for name, plans in presets.items():
                try:
                    for plan in plans:
                        plan.decoding_mode.check(self.checkpoint.block_size)
                except InvalidRequest as error:
                    raise ValueError(f"preset {name!r}: {error.message}") from None
                first, *further = [plan.name for plan in plans] or [""]
                if first != LOSSLESS.name or (name == "lossless" and further):
                    alone = ", and has no other plan" if name == "lossless" else ""
                    raise ValueError(f"preset {name!r}: the first plan is {LOSSLESS.name!r}{alone}")
        return self

    @property
    def frontier(self) -> list[PlanResult]:
        """The rows that no other row beats in accuracy and tokens per forward, by ascending tokens per forward."""
        best = list[PlanResult]()
        for row in sorted(self.rows, key=lambda row: (-row.tokens_per_forward, -row.difference)):
            best += [row] if not best or row.difference > best[-1].difference else []
        return best[::-1]


def read_quality(path: Path) -> QualityFile:
    """Reads the file at a path. CheckpointError names its first fault."""
    try:
        return QualityFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in wrong["loc"]) or "the file"
        advice = "; run `mrp-serve calibrate` again" if field == "version" else ""
        message = f"{path} is no calibration file of version {VERSION}: {field}: {wrong['msg']}{advice}"
        raise CheckpointError(message) from None


def write_quality(file: QualityFile, path: Path) -> None:
    """Writes the file atomically."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
