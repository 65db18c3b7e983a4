"""The knobs of every mode: one frozen class each, checked when made.

The API's schemas are built from these classes. A class has no field for a knob that its mode does not use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar, Final, Literal

from service.decode.rules import Above, Leftmost, LowestEntropy, MostConfident, Rule
from service.errors import InvalidRequest

#: the value of a knob that the engine chooses while decoding
AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class Static:
    """Reveal the `tokens_per_step` most confident positions of every forward."""

    mode: ClassVar[str] = "static"
    served_without_mrp: ClassVar[bool] = True
    needs_mrp: ClassVar[bool] = False
    tokens_per_step: int = 1

    @property
    def rule(self) -> Rule:
        """What a forward reveals."""
        return MostConfident(self.tokens_per_step)

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

    @property
    def rule(self) -> Rule:
        """What a forward reveals."""
        return Above(self.threshold)

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_threshold(self.threshold)


@dataclass(frozen=True, slots=True)
class Sequential:
    """Reveal the `tokens_per_step` leftmost positions of every forward, and more of them as `entropy_bound` allows."""

    mode: ClassVar[str] = "sequential"
    served_without_mrp: ClassVar[bool] = True
    needs_mrp: ClassVar[bool] = False
    tokens_per_step: int = 1
    entropy_bound: float = 0.0

    @property
    def rule(self) -> Rule:
        """What a forward reveals."""
        return Leftmost(self.tokens_per_step, self.entropy_bound)

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_count("tokens_per_step", self.tokens_per_step, block_size)
        _check_bound(self.entropy_bound)


@dataclass(frozen=True, slots=True)
class Entropy:
    """Reveal the positions of lowest entropy, as many as `entropy_bound` allows, at least one."""

    mode: ClassVar[str] = "entropy"
    served_without_mrp: ClassVar[bool] = True
    needs_mrp: ClassVar[bool] = False
    entropy_bound: float = 0.1

    @property
    def rule(self) -> Rule:
        """What a forward reveals."""
        return LowestEntropy(self.entropy_bound)

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_bound(self.entropy_bound)


#: modes that consist of a rule only
Plain = Static | Dynamic | Sequential | Entropy


@dataclass(frozen=True, slots=True)
class Direct:
    """One pick of the backbone, then `mrp_steps` unverified picks of MRP."""

    mode: ClassVar[str] = "direct"
    served_without_mrp: ClassVar[bool] = False
    needs_mrp: ClassVar[bool] = True
    rule: ClassVar[Rule] = MostConfident(1)
    mrp_steps: int = 1

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_count("mrp_steps", self.mrp_steps, block_size)


@dataclass(frozen=True, slots=True)
class Speculative:
    """Drafts, verified by one backbone forward. Output identical to the mode `verify`.

    `verify`: static, dynamic, sequential or entropy; its knobs may be given, too. Default: dynamic if a threshold is
    given, else static.

    `mrp_steps`: the MRP forwards for the drafts of one verification. "auto": the engine chooses their number and a
    tree of the states that are worth their cost at the current load, at most `max_drafts`, perhaps none. A number: a
    tree of `max_drafts` states, or without `max_drafts` a chain of `mrp_steps`. 0: the backbone's last logits draft,
    which needs no MRP.
    """

    mode: ClassVar[str] = "speculative"
    served_without_mrp: ClassVar[bool] = True
    mrp_steps: int | Literal["auto"] = AUTO
    max_drafts: int | None = None
    tokens_per_step: int | None = None
    threshold: float | None = None
    entropy_bound: float | None = None
    verify: str | None = None

    def __post_init__(self) -> None:
        """Sets `verify` if it is not the default, so that the knobs shown to users are those that run."""
        if self.verify is None and self.threshold is not None:
            object.__setattr__(self, "verify", Dynamic.mode)

    @property
    def needs_mrp(self) -> bool:
        """Whether a checkpoint must have MRP."""
        return isinstance(self.mrp_steps, int) and self.mrp_steps > 0

    @property
    def rule(self) -> Rule:
        """The rule against which drafts are verified."""
        return self.plain.rule

    @property
    def plain(self) -> Plain:
        """The mode whose output is reproduced. InvalidRequest if that mode does not have the knobs given."""
        kinds: dict[str, type[Plain]] = {kind.mode: kind for kind in (Static, Dynamic, Sequential, Entropy)}
        name = self.verify or Static.mode
        if name not in kinds:
            raise InvalidRequest(f"verify is {name!r}, allowed are {', '.join(kinds)}", param="verify")
        knobs = ("tokens_per_step", "threshold", "entropy_bound")
        given = {knob: value for knob in knobs if (value := getattr(self, knob)) is not None}
        used = [field.name for field in fields(kinds[name])]
        for knob, value in given.items():
            if knob not in used:
                raise InvalidRequest(
                    f"{knob} is {value}, drafts are verified against {name}, whose knobs are {', '.join(used)}",
                    param=knob,
                )
        return kinds[name](**given)

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        if self.mrp_steps != AUTO:
            self._check_steps(self.mrp_steps, block_size)
        if self.max_drafts is not None:
            _check_count("max_drafts", self.max_drafts, block_size)
        self.plain.check(block_size)

    def _check_steps(self, steps: int | str, block_size: int) -> None:
        if steps == 0 and self.max_drafts is None:
            raise InvalidRequest(
                "mrp_steps is 0, which needs max_drafts: without MRP drafts are a tree", param="mrp_steps"
            )
        if isinstance(steps, str) or not 0 <= steps <= block_size:
            allowed = f"0 (with max_drafts), 1 to {block_size} (the block size) and {AUTO!r}"
            raise InvalidRequest(f"mrp_steps is {steps}, allowed are {allowed}", param="mrp_steps")


@dataclass(frozen=True, slots=True)
class Remask:
    """Dynamic, then MRP revokes fresh reveals whose corrected probability is < `threshold`."""

    mode: ClassVar[str] = "remask"
    served_without_mrp: ClassVar[bool] = False
    needs_mrp: ClassVar[bool] = True
    threshold: float = 0.9

    @property
    def rule(self) -> Rule:
        """What a forward reveals."""
        return Above(self.threshold)

    def check(self, block_size: int) -> None:
        """Raises InvalidRequest where a knob is out of range for this block size."""
        _check_threshold(self.threshold)


ModeParams = Plain | Direct | Speculative | Remask
Knob = int | float | str


def _check_count(name: str, value: int | str, block_size: int) -> None:
    if isinstance(value, str) or not 1 <= value <= block_size:
        raise InvalidRequest(f"{name} is {value}, allowed are 1 to {block_size} (the block size)", param=name)


def _check_threshold(value: float) -> None:
    if not 0 < value <= 1:
        raise InvalidRequest(f"threshold is {value}, allowed is 0 < threshold <= 1", param="threshold")


def _check_bound(value: float) -> None:
    if not 0 <= value < math.inf:
        raise InvalidRequest(f"entropy_bound is {value}, allowed is 0 or more", param="entropy_bound")
