"""What a served checkpoint makes of `quality`: the plans of its calibration file, or why there are none.

Replicas find the file when they load, the ingress resolves requests with what they tell it. Knows no HTTP, no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.decode.registry import default_knobs, default_params
from service.errors import QualityNotAvailable
from service.quality.identity import Config, identity_of
from service.quality.schema import FILE_NAME, Identity, Plan, QualityFile, QualityName, read_quality

_log = logging.getLogger(__name__)

#: what to do where a checkpoint has no calibration
HOW_TO_MAKE = "make one with `mrp-serve calibrate --model CHECKPOINT --prompts FILE.jsonl --scorer …` (docs/quality.md)"


@dataclass(frozen=True, slots=True)
class Presets:
    """The plans there are by name. `measured`, `frontier`: of their file, as plain data, since every card carries them.

    `missing`: why there is no file.
    """

    plans: Mapping[QualityName, Plan]
    measured: Mapping[str, Any] | None = None
    frontier: tuple[Mapping[str, Any], ...] = ()
    missing: str | None = None

    def plan(self, name: QualityName) -> Plan:
        """What is run for a quality. QualityNotAvailable says how to get it."""
        if name not in self.plans:
            raise QualityNotAvailable(
                f"quality is {name!r}, allowed are {', '.join(self.plans)}: {self.missing}", param="quality"
            )
        return self.plans[name]


def file_of(folder: Path, named: Path | None) -> QualityFile | None:
    """The calibration file: the one named, else the checkpoint's if it has one. CheckpointError if it is broken."""
    path = named or folder / FILE_NAME
    return read_quality(path) if named or path.is_file() else None


def presets_of(folder: Path, config: Config, named: Path | None = None) -> Presets:
    """Those of a checkpoint. CheckpointError if its file is broken; one of another checkpoint only is not used."""
    mode = default_params().mode
    knobs = default_knobs(mode, config.mrp.default_steps if config.mrp else 0)
    fallback: dict[QualityName, Plan] = {"lossless": Plan(mode=mode, knobs=knobs)}
    file = file_of(folder, named)
    if file is None:
        return Presets(fallback, missing=f"this checkpoint has no {FILE_NAME}; {HOW_TO_MAKE}")
    identity = identity_of(folder, config)
    if file.checkpoint == identity:
        frontier = tuple(row.model_dump() for row in file.frontier)
        return Presets(file.presets, file.measured.model_dump(), frontier)
    other = [name for name in Identity.model_fields if getattr(file.checkpoint, name) != getattr(identity, name)]
    why = f"its {FILE_NAME} was made for another checkpoint ({' and '.join(other)} differ); {HOW_TO_MAKE}"
    _log.warning("quality presets are not served: %s", why)
    return Presets(fallback, missing=why)
