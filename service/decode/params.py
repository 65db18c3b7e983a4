"""The knobs of every mode: one frozen class each, checked when made.

The API's schemas are built from these; a knob a mode does not use does not exist on its class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from service.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Static:
    """Reveal the `tokens_per_step` most confident positions of every forward."""

    mode: ClassVar[str] = "static"
    needs_mrp: ClassVar[bool] = False
    tokens_per_step: int = 1

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_count("tokens_per_step", self.tokens_per_step, block_size)


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Reveal every position with confidence > `threshold`; if none, the most confident."""

    mode: ClassVar[str] = "dynamic"
    needs_mrp: ClassVar[bool] = False
    threshold: float = 0.9

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_threshold(self.threshold)


@dataclass(frozen=True, slots=True)
class Direct:
    """Static by the backbone, then `mrp_steps` unverified picks of MRP."""

    mode: ClassVar[str] = "direct"
    needs_mrp: ClassVar[bool] = True
    mrp_steps: int = 1

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_count("mrp_steps", self.mrp_steps, block_size)


@dataclass(frozen=True, slots=True)
class Speculative:
    """`mrp_steps` drafts, verified by one backbone forward. Output identical to static."""

    mode: ClassVar[str] = "speculative"
    needs_mrp: ClassVar[bool] = True
    mrp_steps: int = 2

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_count("mrp_steps", self.mrp_steps, block_size)


@dataclass(frozen=True, slots=True)
class Remask:
    """Dynamic, then MRP revokes fresh reveals whose corrected probability is < `threshold`."""

    mode: ClassVar[str] = "remask"
    needs_mrp: ClassVar[bool] = True
    threshold: float = 0.9

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_threshold(self.threshold)


ModeParams = Static | Dynamic | Direct | Speculative | Remask


def _check_count(name: str, value: int, block_size: int) -> None:
    if not 1 <= value <= block_size:
        raise InvalidRequest(f"{name} is {value}, allowed are 1 to {block_size} (the block size)", param=name)


def _check_threshold(value: float) -> None:
    if not 0 < value <= 1:
        raise InvalidRequest(f"threshold is {value}, allowed is 0 < threshold <= 1", param="threshold")
