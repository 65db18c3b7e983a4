"""The presets of a served checkpoint: the plans of its calibration file, or the reason why it has none."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.errors import QualityNotAvailable
from service.quality.schema import LOSSLESS, Identity, PresetPlan, QualityFile, QualityName, file_name, read_quality

if TYPE_CHECKING:
    from service.model.config import ModelConfig

_log = logging.getLogger(__name__)

#: samples of a file of weights, and bytes of a sample
_SAMPLES, _BYTES = 64, 4096

#: the advice for a checkpoint without a calibration
HOW_TO_MAKE = "make one with `mrp-serve calibrate --model CHECKPOINT --prompts FILE.jsonl --scorer …` (docs/quality.md)"


@dataclass(frozen=True, slots=True)
class Presets:
    """The plans of each quality, and `sampled_plans` of temperatures above 0. Every model card carries the presets.

    The engine runs the fastest of a quality's plans. `measured`, `frontier`: parts of the calibration file, as plain
    data. `missing`: why there is no calibration file.
    """

    plans: Mapping[QualityName, tuple[PresetPlan, ...]]
    measured: Mapping[str, Any] | None = None
    frontier: tuple[Mapping[str, Any], ...] = ()
    missing: str | None = None
    sampled_plans: Mapping[QualityName, tuple[PresetPlan, ...]] = field(default_factory=dict)

    def plans_for(self, name: QualityName, temperature: float) -> tuple[PresetPlan, ...]:
        """The plans of a quality, `lossless` above the highest measured temperature. Raises QualityNotAvailable."""
        if name not in self.plans:
            raise QualityNotAvailable(
                f"quality is {name!r}, allowed are {', '.join(self.plans)}: {self.missing}", param="quality"
            )
        if temperature <= 0:
            return self.plans[name]
        measured = self.measured is not None and temperature <= max(self.measured["temperatures"])
        return self.sampled_plans[name] if measured else self.plans["lossless"]


def in_words(plans: Sequence[PresetPlan]) -> str:
    """Such as `speculative mrp_steps=auto or dynamic threshold=0.8`."""
    return " or ".join(plan.name for plan in plans)


def file_of(folder: Path, chosen: Path | None, name: str) -> QualityFile | None:
    """The chosen calibration file, else the checkpoint's `name` if it has one. CheckpointError if it is broken."""
    path = chosen or folder / name
    return read_quality(path) if chosen or path.is_file() else None


def presets_of(folder: Path, config: ModelConfig, chosen: Path | None = None, activation_parts: int = 1) -> Presets:
    """The presets of a checkpoint. A file of another checkpoint is not used. CheckpointError if it is broken."""
    fallback: dict[QualityName, tuple[PresetPlan, ...]] = {
        "lossless": (PresetPlan(**LOSSLESS.model_dump(), tokens_per_forward=1.0),)
    }
    name = file_name(config.quantization, activation_parts)
    if (file := file_of(folder, chosen, name)) is None:
        return Presets(fallback, missing=f"this checkpoint has no {name}; {HOW_TO_MAKE}")
    identity = identity_of(folder, config, activation_parts)
    if file.checkpoint == identity:
        frontier = tuple(row.model_dump() for row in file.frontier)
        greedy, sampled = (
            {name: tuple(plans) for name, plans in presets.items()} for presets in (file.presets, file.sampled_presets)
        )
        return Presets(greedy, file.measured.model_dump(), frontier, sampled_plans=sampled)
    other = [name for name in Identity.model_fields if getattr(file.checkpoint, name) != getattr(identity, name)]
    why = f"its {name} was made for another checkpoint ({' and '.join(other)} differ); {HOW_TO_MAKE}"
    _log.warning("quality presets are not served: %s", why)
    return Presets(fallback, missing=why)


def identity_of(folder: Path, config: ModelConfig, activation_parts: int = 1) -> Identity:
    """The identity of a loaded checkpoint, with its overridden values. `activation_parts`: as in `Identity`."""
    mrp = None if config.mrp is None else {"residual": config.mrp.residual, "scale": float(config.mrp.scale)}
    return Identity(
        block_size=config.block_size,
        mrp=mrp,
        weights=weights_fingerprint(folder),
        quantization=config.quantization,
        activation_parts=activation_parts,
    )


def weights_fingerprint(folder: Path) -> str:
    """Hash of names, sizes and evenly spread samples of the safetensors files. Further training changes it."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for sample in range(_SAMPLES):
                file.seek(sample * max(0, size - _BYTES) // (_SAMPLES - 1))
                digest.update(file.read(_BYTES))
    return f"sha256:{digest.hexdigest()}"
