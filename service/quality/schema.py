"""The calibration file, `quality.json`: its fields, reading it, writing it. docs/quality.md explains them.

`mrp-serve calibrate` writes it, replicas read it beside the checkpoint. Knows no engine and no HTTP.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from service.decode.knobs import KnobValue
from service.decode.params import ModeParams
from service.decode.registry import make_params
from service.errors import CheckpointError, InvalidRequest

#: lies in the checkpoint's folder
FILE_NAME = "quality.json"
VERSION = 1

QualityName = Literal["lossless", "balanced", "fast"]
QUALITIES: tuple[QualityName, ...] = get_args(QualityName)

Share = Annotated[float, Field(ge=0, le=1)]
Difference = Annotated[float, Field(ge=-1, le=1)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]


def knobs_of(params: ModeParams) -> dict[str, KnobValue]:
    """The knobs of params that are set."""
    return {name: value for name, value in asdict(params).items() if value is not None}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Plan(_Part):
    """A mode and its knobs; a knob that is not named has the default of its params class."""

    mode: str
    knobs: dict[str, KnobValue] = Field(default_factory=dict)

    @classmethod
    def of(cls, params: ModeParams) -> Plan:
        """The plan that these params are."""
        return cls(mode=params.mode, knobs=knobs_of(params))

    @property
    def params(self) -> ModeParams:
        """As the engine takes them. InvalidRequest for what there is not."""
        return make_params(self.mode, self.knobs)

    @property
    def name(self) -> str:
        """Such as `remask threshold=0.5`."""
        return " ".join([self.mode, *(f"{knob}={value}" for knob, value in self.knobs.items())])


class Identity(_Part):
    """Which checkpoint was measured: what its answers hang on."""

    block_size: Positive
    mrp: dict[str, bool | float] | None = Field(description="residual and scale; null without MRP")
    weights: str = Field(description="fingerprint of the weights: identity.py")


class Measured(_Part):
    """What was measured, and how."""

    at: str = Field(description="date")
    model: str
    prompts: Positive
    prompts_sha256: str
    scorer: str
    max_new_tokens: Positive
    device: str
    dtype: str
    threads: Positive
    clock: Literal["cpu", "wall"] = Field(description="tokens_per_second: CPU time of the one thread, or the wall's")
    concurrency: list[Positive] = Field(min_length=1)
    chosen_at: Positive = Field(description="the concurrency whose tokens a second order frontier and presets")
    how: str = Field(description="the same in words")

    @model_validator(mode="after")
    def _chosen_at_what_was_measured(self) -> Self:
        if self.chosen_at not in self.concurrency:
            raise ValueError(f"chosen_at is {self.chosen_at}, measured were {self.concurrency}")
        return self


class Margins(_Part):
    """How much less accurate than static presets may be, and which differences of speed count as none."""

    balanced: Share = 0.01
    fast: Share = 0.05
    tie: Share = 0.03


class Speed(_Part):
    """Tokens a second at one concurrency, prefill included. `speedup`: over static, on the same chunks of prompts."""

    concurrency: Positive
    tokens_per_second: Rate
    tokens_per_second_wall: Rate
    speedup: Rate
    speedup_low: float
    speedup_high: float


class Row(_Part):
    """One plan. `prompts`, `right`, `gained`, `lost`, `identical` count answers; the rest is estimated from them.

    A `lossless` plan gives static's answers by construction: it answers the timed prompts only, and its accuracy
    is static's.
    """

    plan: Plan
    lossless: bool
    on_frontier: bool = False
    prompts: Positive
    right: Count
    gained: Count = Field(description="right here and wrong in static")
    lost: Count = Field(description="wrong here and right in static")
    identical: Count = Field(description="answers equal, token for token, to static's")
    accuracy: Share
    accuracy_low: Share
    accuracy_high: Share
    difference: Difference = Field(description="of accuracy, from static's, on the same prompts")
    difference_low: Difference
    difference_high: Difference
    tokens_per_forward: Rate = Field(description="up to the end token, per denoise or verify forward")
    speed: list[Speed]

    def speed_at(self, concurrency: int) -> Speed:
        """Its speed at one of the concurrencies that were measured."""
        return next(one for one in self.speed if one.concurrency == concurrency)


class QualityFile(_Part):
    """The whole file."""

    version: Literal[1]
    checkpoint: Identity
    measured: Measured
    margins: Margins
    presets: dict[QualityName, Plan]
    warnings: list[str]
    rows: list[Row]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if missing := set(QUALITIES) - set(self.presets):
            raise ValueError(f"presets lack {', '.join(sorted(missing))}")
        for row in self.rows:
            if {speed.concurrency for speed in row.speed} != set(self.measured.concurrency):
                raise ValueError(f"row {row.plan.name!r} has not the concurrencies {self.measured.concurrency}")
        for name, plan in self.presets.items():
            try:
                plan.params.check(self.checkpoint.block_size)
            except InvalidRequest as error:
                raise ValueError(f"preset {name!r}: {error.message}") from None
        return self

    @property
    def frontier(self) -> list[Row]:
        """The rows that no other one beats, fastest last."""
        at = self.measured.chosen_at
        return sorted((row for row in self.rows if row.on_frontier), key=lambda row: row.speed_at(at).tokens_per_second)


def read_quality(path: Path) -> QualityFile:
    """The file at a path. CheckpointError says what of it is wrong."""
    try:
        return QualityFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in wrong["loc"]) or "the file"
        raise CheckpointError(f"{path} is no calibration file of version {VERSION}: {place}: {wrong['msg']}") from None


def write_quality(file: QualityFile, path: Path) -> None:
    """Writes the file whole or not at all."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
