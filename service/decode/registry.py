"""All modes. A new mode needs a params class, a policy file (or a rule) and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields

from service.decode import params as modes
from service.decode.block import Canvas
from service.decode.by_rule import by_rule
from service.decode.direct import direct
from service.decode.params import AUTO, Knob, ModeParams
from service.decode.policy import Decoding, Policy
from service.decode.remask import remask
from service.decode.speculative import speculative
from service.errors import InvalidRequest

POLICIES: dict[type[ModeParams], Policy] = {
    modes.Static: by_rule,
    modes.Dynamic: by_rule,
    modes.Sequential: by_rule,
    modes.Entropy: by_rule,
    modes.Direct: direct,
    modes.Speculative: speculative,
    modes.Remask: remask,
}

#: mode name -> its params class
MODES: dict[str, type[ModeParams]] = {params.mode: params for params in POLICIES}


def decode_block(canvas: Canvas, params: ModeParams) -> Decoding:
    """Starts the policy of the params' mode on a canvas."""
    return POLICIES[type(params)](canvas, params)


def make_params(mode: str, knobs: Mapping[str, Knob]) -> ModeParams:
    """The params of a mode by name. InvalidRequest for an unknown mode, or for a knob that the mode does not use."""
    if mode not in MODES:
        raise InvalidRequest(f"mode is {mode!r}, allowed are {', '.join(MODES)}", param="mode")
    used = [field.name for field in fields(MODES[mode])]
    for knob in knobs:
        if knob not in used:
            raise InvalidRequest(f"mode {mode!r} does not use {knob}; its knobs are {', '.join(used)}", param=knob)
    return MODES[mode](**knobs)  # type: ignore[arg-type]


def only_drafts(params: ModeParams) -> bool:
    """Whether MRP changes only the speed of decoding, not the output."""
    return isinstance(params, modes.Speculative)


def leaves_drafts_open(params: ModeParams) -> bool:
    """Whether the engine chooses the number of drafts while decoding."""
    return isinstance(params, modes.Speculative) and params.mrp_steps == modes.AUTO


def served_without_mrp() -> list[str]:
    """The modes of a checkpoint without MRP, for error messages; with the knob values that a mode needs for it."""
    served = [name for name, params in MODES.items() if params.served_without_mrp]
    return [f"{name} with mrp_steps {AUTO} or 0" if name == modes.Speculative.mode else name for name in served]


def default_knobs(mode: str, mrp_steps: int) -> dict[str, Knob]:
    """The knobs of a mode when a request names none. `mrp_steps`: the checkpoint's, 0 if it has no MRP."""
    knobs = {name: value for name, value in asdict(make_params(mode, {})).items() if value is not None}
    if mode == modes.Direct.mode and mrp_steps:
        knobs["mrp_steps"] = mrp_steps
    return knobs


def default_params() -> ModeParams:
    """The params of requests that name no mode: the fastest lossless mode."""
    return modes.Speculative()
