"""The identity of a calibrated checkpoint: the values on which its answers depend, and a fingerprint of its weights.

The fingerprint reads only samples of the weights.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

from service.quality.schema import Identity

_SAMPLES = 64
_BYTES = 4096


class IdentityMrp(Protocol):
    """The parts of an MRP's configuration that this module needs."""

    @property
    def residual(self) -> bool:
        """Whether MRP's output is added to the logits."""

    @property
    def scale(self) -> float:
        """The factor on MRP's output."""

    @property
    def default_steps(self) -> int:
        """The default number of MRP steps."""


class IdentityConfig(Protocol):
    """The parts of a checkpoint's configuration that this module needs."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""

    @property
    def mrp(self) -> IdentityMrp | None:
        """The configuration of MRP; None without MRP."""

    @property
    def quantization(self) -> str | None:
        """The form in which the layers' matrices are kept; None: they are not quantized."""


def identity_of(folder: Path, config: IdentityConfig, activation_parts: int = 1) -> Identity:
    """The identity of a checkpoint as it is loaded, with its overridden values.

    `activation_parts`: into how many parts the ranks divide activations before they become 8 bits.
    """
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
            for number in range(_SAMPLES):
                file.seek(number * max(0, size - _BYTES) // (_SAMPLES - 1))
                digest.update(file.read(_BYTES))
    return f"sha256:{digest.hexdigest()}"
