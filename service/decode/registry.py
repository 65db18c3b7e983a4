"""Looks up modes by name, and gives the defaults."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from service.decode.knobs import AUTO, KnobValue, knobs_in
from service.decode.mode import DecodingMode
from service.decode.modes import MODES, Direct, Mode, Speculative
from service.errors import InvalidRequest


def make_mode(mode: str, knobs: Mapping[str, KnobValue]) -> Mode:
    """A mode by name, with these knobs. InvalidRequest for an unknown mode or a knob that the mode does not use."""
    if mode not in MODES:
        raise InvalidRequest(f"mode is {mode!r}, allowed are {', '.join(MODES)}", param="mode")
    used = knobs_in(MODES[mode])
    for knob in knobs:
        if knob not in used:
            raise InvalidRequest(f"mode {mode!r} does not use {knob}; {these_knobs(used)}", param=knob)
    values: dict[str, Any] = dict(knobs)
    return MODES[mode](**values)


def these_knobs(used: Iterable[str]) -> str:
    """The knobs of a mode, in the words of an error."""
    return f"its knobs are {', '.join(used)}"


def only_drafts(mode: DecodingMode) -> bool:
    """Whether the backbone verifies all of MRP's picks. Unless drafts decide, MRP then changes only the speed."""
    return isinstance(mode, Speculative)


def leaves_drafts_open(mode: DecodingMode) -> bool:
    """Whether the number of drafts is chosen while decoding."""
    return isinstance(mode, Speculative) and mode.mrp_steps == AUTO


def served_modes(*, has_mrp: bool, causal: bool) -> list[str]:
    """The modes of a checkpoint, with or without MRP, whose mask is causal or not."""
    return [
        name
        for name, mode in MODES.items()
        if (has_mrp or mode.served_without_mrp) and (not causal or mode.served_in_order)
    ]


def served_without_mrp(*, causal: bool) -> list[str]:
    """The modes of a checkpoint without MRP, for error messages; with the knob values that a mode needs for it."""
    served = served_modes(has_mrp=False, causal=causal)
    return [f"{name} with mrp_steps {AUTO} or 0" if name == Speculative.name else name for name in served]


def default_knobs(mode: str, mrp_steps: int) -> dict[str, KnobValue]:
    """The knobs of a mode when a request names none. `mrp_steps`: the checkpoint's, 0 if it has no MRP."""
    knobs = {name: value for name, value in asdict(make_mode(mode, {})).items() if value is not None}
    if mode == Direct.name and mrp_steps:
        knobs["mrp_steps"] = mrp_steps
    return knobs


def default_mode() -> DecodingMode:
    """The mode of requests that name none: the fastest lossless mode."""
    return Speculative()
