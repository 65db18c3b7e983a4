"""The plans that a calibration tries: every mode at a grid of its knobs, or the plans of the command line."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from service.decode.mode import DecodingMode
from service.decode.modes import MODES, Static
from service.decode.registry import make_mode
from service.errors import InvalidRequest

Grid = Mapping[str, Sequence[Mapping[str, Any]]]


def thresholds(*values: float) -> tuple[Mapping[str, float], ...]:
    """A line of a grid: the knob `threshold` at each value."""
    return tuple({"threshold": value} for value in values)


def entropy_bounds(*values: float) -> tuple[Mapping[str, float], ...]:
    """A line of a grid: the knob `entropy_bound` at each value."""
    return tuple({"entropy_bound": value} for value in values)


#: mode -> the knobs that a calibration tries
GRID: Grid = {
    "static": ({}, {"tokens_per_step": 2}, {"tokens_per_step": 4}),
    "dynamic": thresholds(*(tenths / 10 for tenths in range(3, 10))),
    "sequential": entropy_bounds(0.0, 0.1, 0.3, 1.0),
    "entropy": entropy_bounds(0.05, 0.1, 0.3),
    "direct": ({"mrp_steps": 1}, {"mrp_steps": 2}, {"mrp_steps": 4}),
    "speculative": (
        {"mrp_steps": 1},
        {"mrp_steps": 2},
        {"mrp_steps": 4},
        {"mrp_steps": 0, "max_drafts": 4},
        {"mrp_steps": 1, "max_drafts": 4},
        {"mrp_steps": "auto"},
        {"mrp_steps": "auto", "threshold": 0.7},
        {"mrp_steps": "auto", "verify": "sequential", "entropy_bound": 0.1},
        {"mrp_steps": 1, "max_drafts": 4, "threshold": 0.7},
        {"mrp_steps": 1, "max_drafts": 4, "verify": "sequential", "entropy_bound": 0.1},
        {"mrp_steps": 0, "max_drafts": 4, "verify": "sequential", "entropy_bound": 0.1, "margin": 0.5},
        {"mrp_steps": 1, "max_drafts": 4, "verify": "sequential", "entropy_bound": 0.1, "margin": 0.5},
        {"mrp_steps": 4, "max_drafts": 4, "verify": "sequential", "entropy_bound": 0.1, "margin": 0.5},
    ),
    "remask": thresholds(0.3, 0.4, 0.5, 0.7, 0.9),
}


def default_plans(block_size: int, *, has_mrp: bool) -> list[DecodingMode]:
    """The plans of the grid that a checkpoint can run. Static comes first: the others are compared with it."""
    plans = []
    for mode, knobs in grid_lines(GRID):
        with suppress(InvalidRequest):  # the block is too short for the knobs
            plan = make_mode(mode, knobs)
            plan.check(block_size)
            plans += [plan] if has_mrp or not plan.needs_mrp else []
    return with_static_first(plans)


def with_static_first(plans: Iterable[DecodingMode]) -> list[DecodingMode]:
    """Static, then the other plans, each once."""
    return [Static(), *(plan for plan in dict.fromkeys(plans) if plan != Static())]


def grid_lines(grid: Grid) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mode with each of its knobs in a grid."""
    return ((mode, knobs) for mode in MODES for knobs in grid.get(mode, ({},)))


def parse_plan(text: str) -> DecodingMode:
    """The mode of the text `mode knob=value …`. InvalidRequest for another text, an unknown mode or knob."""
    mode, *words = text.split() or [""]
    try:
        pairs = [word.split("=") for word in words]
        knobs = {name: value if value.isalpha() else json.loads(value) for name, value in pairs}
    except ValueError as error:
        raise InvalidRequest(f"plan is {text!r}, expected is text such as 'remask threshold=0.5'") from error
    return make_mode(mode, knobs)
