"""Which plans a calibration and an evaluation try: every mode there is, at a grid of its knobs.

A mode without a line here is tried at its defaults. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.bench.evaluation import Plan
from service.decode.mode import DecodingMode
from service.decode.modes import MODES, Speculative, Static
from service.decode.registry import make_mode
from service.errors import InvalidRequest


def _thresholds(*values: float) -> tuple[Mapping[str, float], ...]:
    return tuple({"threshold": value} for value in values)


Grid = Mapping[str, Sequence[Mapping[str, Any]]]

#: mode -> the knobs that an evaluation tries: few, so that its table can be read
EVALUATED: Grid = {
    "dynamic": _thresholds(0.3, 0.5, 0.7, 0.9),
    "sequential": tuple({"entropy_bound": value} for value in (0.1, 1.0)),
    "entropy": tuple({"entropy_bound": value} for value in (0.1, 1.0)),
    "direct": ({"mrp_steps": 1}, {"mrp_steps": 2}),
    "speculative": ({"mrp_steps": 1}, {"mrp_steps": 2}, {"mrp_steps": 4}),
    "remask": _thresholds(0.3, 0.5, 0.7, 0.9),
}

#: mode -> the knobs that a calibration tries
CALIBRATED: Grid = {
    "static": ({}, {"tokens_per_step": 2}, {"tokens_per_step": 4}),
    "dynamic": _thresholds(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "sequential": tuple({"entropy_bound": value} for value in (0.0, 0.1, 0.3, 1.0)),
    "entropy": tuple({"entropy_bound": value} for value in (0.05, 0.1, 0.3)),
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
    "remask": _thresholds(0.3, 0.4, 0.5, 0.7, 0.9),
}


def grid(block_size: int, *, has_mrp: bool) -> list[DecodingMode]:
    """The plans that a checkpoint can run, static, which the others are compared with, first."""
    plans = [plan for mode, knobs in _lines(CALIBRATED) if (plan := _plan(mode, knobs, block_size))]
    return [Static(), *(plan for plan in plans if plan != Static() and (has_mrp or not plan.needs_mrp))]


def default_plans(*, with_mrp: bool) -> list[Plan]:
    """What `mrp-serve eval` tries: static first. What needs MRP is tried with MRP's output set to zero, too."""
    tried = [make_mode(mode, knobs) for mode, knobs in _lines(EVALUATED)]
    if not with_mrp:
        tried = [params for params in tried if not params.needs_mrp]
        tried += [Speculative(0, drafts) for drafts in (1, 4)]
    return [Plan(params, engine) for params in tried for engine in (("mrp", "zero") if params.needs_mrp else ("mrp",))]


def _lines(grid: Grid) -> list[tuple[str, Mapping[str, Any]]]:
    return [(mode, knobs) for mode in MODES for knobs in grid.get(mode, ({},))]


def _plan(mode: str, knobs: Mapping[str, Any], block_size: int) -> DecodingMode | None:
    """None where the block is too short for the knobs."""
    try:
        params = make_mode(mode, knobs)
        params.check(block_size)
    except InvalidRequest:
        return None
    return params
