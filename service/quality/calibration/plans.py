"""The plans that a calibration tries: every mode with some knobs, or the plans of the command line."""

import json
from collections.abc import Iterable
from contextlib import suppress

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Edit, Entropy, Remask, Sequential, Speculative, Static
from service.decode.registry import default_mode, make_mode
from service.errors import InvalidRequest

#: the plans that a calibration tries by default
GRID: tuple[DecodingMode, ...] = (
    *map(Static, (1, 2, 4)),
    *(Dynamic(tenths / 10) for tenths in range(3, 10)),
    *(Sequential(entropy_bound=bound) for bound in (0.0, 0.1, 0.3, 1.0)),
    *map(Entropy, (0.05, 0.1, 0.3)),
    *map(Direct, (1, 2, 4)),
    *(Direct(2, threshold) for threshold in (0.5, 0.6, 0.7)),
    Speculative("auto", threshold=0.7),
    Speculative("auto", verify="sequential", entropy_bound=0.1),
    *map(Remask, (0.3, 0.4, 0.5, 0.7, 0.9)),
    Edit(),
)


def default_plans(block_size: int, *, has_mrp: bool, causal: bool = False) -> list[DecodingMode]:
    """The plans of the grid that a checkpoint can run. Static comes first: the others are compared with it."""
    plans = []
    for plan in GRID:
        with suppress(InvalidRequest):  # the block is too short for the knobs
            plan.check(block_size)
            plans += [plan] if (has_mrp or not plan.needs_mrp) and (plan.served_in_order or not causal) else []
    return with_lossless_first(plans)


def with_lossless_first(plans: Iterable[DecodingMode]) -> list[DecodingMode]:
    """Static, the lossless plan of all presets, then the other plans, each once."""
    return list(dict.fromkeys([Static(), default_mode(), *plans]))


def parse_plan(text: str) -> DecodingMode:
    """The mode of the text `mode knob=value …`. InvalidRequest for another text, an unknown mode or knob."""
    mode, *words = text.split() or [""]
    try:
        pairs = [word.split("=") for word in words]
        knobs = {name: value if value.isalpha() else json.loads(value) for name, value in pairs}
    except ValueError as error:
        raise InvalidRequest(f"plan is {text!r}, expected is text such as 'remask threshold=0.5'") from error
    return make_mode(mode, knobs)
