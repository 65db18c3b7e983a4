"""Which checkpoint a calibration is of: what its answers hang on, and a fingerprint that does not read all weights.

Knows files and some fields of a configuration; called where a checkpoint is loaded.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

from service.quality.schema import Identity

_SAMPLES = 64
_BYTES = 4096


class Mrp(Protocol):
    """What is needed of an MRP's configuration."""

    @property
    def residual(self) -> bool:
        """Whether its output is added."""

    @property
    def scale(self) -> float:
        """What its output is multiplied with."""

    @property
    def default_steps(self) -> int:
        """Its steps where none are named."""


class Config(Protocol):
    """What is needed of a checkpoint's configuration."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""

    @property
    def mrp(self) -> Mrp | None:
        """None without MRP."""


def identity_of(folder: Path, config: Config) -> Identity:
    """The identity of a checkpoint as it is loaded, its overridden values included."""
    mrp = None if config.mrp is None else {"residual": config.mrp.residual, "scale": float(config.mrp.scale)}
    return Identity(block_size=config.block_size, mrp=mrp, weights=weights_fingerprint(folder))


def weights_fingerprint(folder: Path) -> str:
    """Hash of names, sizes and evenly spread samples of the safetensors files: other training, other fingerprint."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for number in range(_SAMPLES):
                file.seek(number * max(0, size - _BYTES) // (_SAMPLES - 1))
                digest.update(file.read(_BYTES))
    return f"sha256:{digest.hexdigest()}"
