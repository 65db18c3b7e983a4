"""The rows of the paper's tables and ours, and the paper's numbers for the 8B model.

Source: "Multi-Token Residual Prediction" (arXiv 2605.18817): lossless drafts, direct decoding, dynamic decoding and
remasking, all greedy with blocks of 16. Its numbers are on other hardware and in bfloat16.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.calibration.pareto import is_lossless
from service.calibration.plans import parse_plan
from service.decode.mode import DecodingMode
from service.errors import InvalidRequest
from service.quality.schema import knobs_of

_THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
_PUBLISHED = (
    "static",
    *(f"dynamic threshold={threshold}" for threshold in _THRESHOLDS),
    *(f"speculative mrp_steps={steps}" for steps in (1, 2, 3, 4)),
    *(f"direct mrp_steps={steps}" for steps in (1, 2)),
    *(f"remask threshold={threshold}" for threshold in _THRESHOLDS),
)
_OURS = (
    "speculative mrp_steps=auto",
    "speculative mrp_steps=1 max_drafts=4",
    "speculative mrp_steps=2 max_drafts=8",
    "speculative mrp_steps=0 max_drafts=4",
    "sequential entropy_bound=0.1",
)


@dataclass(frozen=True, slots=True)
class Row:
    """A row: a mode with its knobs, as text and for the engine. `is_published`: the paper has this row."""

    name: str
    mode: DecodingMode
    is_published: bool

    @property
    def is_lossless(self) -> bool:
        """Whether its answers are static's."""
        return self.name != "static" and is_lossless(self.mode)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a request."""
        return {"mode": self.mode.mode, **knobs_of(self.mode)}


def rows_for(names: Sequence[str], *, has_mrp: bool, block_size: int) -> list[Row]:
    """The rows of these names that a model can decode, static first. No names: all rows.

    InvalidRequest for a name that is no plan.
    """
    chosen = dict.fromkeys(["static", *(names or (*_PUBLISHED, *_OURS))])
    rows = [Row(name, parse_plan(name), name in _PUBLISHED) for name in chosen]
    return [row for row in rows if (has_mrp or not row.mode.needs_mrp) and _fits(row.mode, block_size)]


def _fits(mode: DecodingMode, block_size: int) -> bool:
    try:
        mode.check(block_size)
    except InvalidRequest:
        return False
    return True


@dataclass(frozen=True, slots=True)
class PaperCell:
    """The paper's numbers. `accuracy`: in percent. `speedup`: the range of throughputs over static on all tasks."""

    accuracy: float | None = None
    speedup: tuple[float, float] | None = None

    def __str__(self) -> str:
        """The numbers as text, empty without any."""
        speedup = f"{self.speedup[0]:.2f} to {self.speedup[1]:.2f} x" if self.speedup else ""
        return ", ".join(filter(None, [f"{self.accuracy:.1f} %" if self.accuracy else "", speedup]))


_SPEEDUPS = {
    "speculative mrp_steps=3": (1.26, 1.40),
    "direct mrp_steps=1": (1.51, 1.61),
    "direct mrp_steps=2": (1.75, 1.91),
}
_ACCURACIES: Mapping[str, Mapping[str, float]] = {
    "gsm8k": {
        "static": 90.9,
        "direct mrp_steps=1": 90.1,
        "direct mrp_steps=2": 89.2,
        "dynamic threshold=0.5": 67.9,
        "remask threshold=0.5": 82.3,
    },
    "humaneval": {
        "static": 73.8,
        "direct mrp_steps=1": 67.1,
        "direct mrp_steps=2": 64.0,
        "dynamic threshold=0.5": 32.3,
        "remask threshold=0.5": 54.9,
    },
}


def paper_cell(model: str, block_size: int, task: str, row: str) -> PaperCell:
    """The paper's numbers for a row. It has those of 8B with blocks of 16."""
    if block_size != 16 or not re.search(r"(?<![\d.])8b", model.lower()):
        return PaperCell()
    return PaperCell(_ACCURACIES.get(task, {}).get(row), _SPEEDUPS.get(row))
