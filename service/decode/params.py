"""The knobs of every mode: one frozen class each, checked when made.

The API's schemas are built from these; a knob a mode does not use does not exist on its class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from service.decode.rules import Above, MostConfident, Rule
from service.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Static:
    """Reveal the `tokens_per_step` most confident positions of every forward."""

    mode: ClassVar[str] = "static"
    served_without_mrp: ClassVar[bool] = True
    needs_mrp: ClassVar[bool] = False
    tokens_per_step: int = 1

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_count("tokens_per_step", self.tokens_per_step, block_size)


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Reveal every position with confidence > `threshold`; if none, the most confident."""

    mode: ClassVar[str] = "dynamic"
    served_without_mrp: ClassVar[bool] = True
    needs_mrp: ClassVar[bool] = False
    threshold: float = 0.9

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_threshold(self.threshold)


@dataclass(frozen=True, slots=True)
class Direct:
    """Static by the backbone, then `mrp_steps` unverified picks of MRP."""

    mode: ClassVar[str] = "direct"
    served_without_mrp: ClassVar[bool] = False
    needs_mrp: ClassVar[bool] = True
    mrp_steps: int = 1

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_count("mrp_steps", self.mrp_steps, block_size)


@dataclass(frozen=True, slots=True)
class Speculative:
    """Drafts, verified by one backbone forward. Output identical to static, or to dynamic if a threshold is given.

    `mrp_steps`: MRP forwards that a verification's drafts may take. `max_drafts`: states that are verified, a tree;
    by default a chain of `mrp_steps`. With 0 `mrp_steps` the backbone's last logits draft alone, which needs no MRP.
    """

    mode: ClassVar[str] = "speculative"
    served_without_mrp: ClassVar[bool] = True
    mrp_steps: int = 2
    max_drafts: int | None = None
    tokens_per_step: int | None = None
    threshold: float | None = None

    @property
    def needs_mrp(self) -> bool:
        """Whether a checkpoint must have MRP."""
        return self.mrp_steps > 0

    @property
    def rule(self) -> Rule:
        """What the drafts are verified against."""
        return MostConfident(self.tokens_per_step or 1) if self.threshold is None else Above(self.threshold)

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        if self.max_drafts is None:
            if self.mrp_steps == 0:
                raise InvalidRequest(
                    "mrp_steps is 0, then max_drafts is needed: without MRP a tree drafts", param="mrp_steps"
                )
            _check_count("mrp_steps", self.mrp_steps, block_size)
        else:
            _check_count("mrp_steps", self.mrp_steps, block_size, least=0)
            _check_count("max_drafts", self.max_drafts, block_size)
        if self.tokens_per_step is not None:
            _check_count("tokens_per_step", self.tokens_per_step, block_size)
        if self.threshold is not None:
            _check_threshold(self.threshold)
            if self.tokens_per_step is not None:
                raise InvalidRequest(
                    f"threshold is {self.threshold} and tokens_per_step is {self.tokens_per_step}, allowed is one of "
                    "them: drafts are verified against dynamic or against static",
                    param="threshold",
                )


@dataclass(frozen=True, slots=True)
class Remask:
    """Dynamic, then MRP revokes fresh reveals whose corrected probability is < `threshold`."""

    mode: ClassVar[str] = "remask"
    served_without_mrp: ClassVar[bool] = False
    needs_mrp: ClassVar[bool] = True
    threshold: float = 0.9

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_threshold(self.threshold)


ModeParams = Static | Dynamic | Direct | Speculative | Remask


def _check_count(name: str, value: int, block_size: int, least: int = 1) -> None:
    if not least <= value <= block_size:
        raise InvalidRequest(f"{name} is {value}, allowed are {least} to {block_size} (the block size)", param=name)


def _check_threshold(value: float) -> None:
    if not 0 < value <= 1:
        raise InvalidRequest(f"threshold is {value}, allowed is 0 < threshold <= 1", param="threshold")
