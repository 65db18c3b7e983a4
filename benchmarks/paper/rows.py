"""The rows of the paper's tables and ours: lossless drafts, direct decoding, dynamic decoding and remasking."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.decode.mode import DecodingMode
from service.errors import InvalidRequest
from service.quality.calibration.pareto import is_lossless
from service.quality.calibration.plans import parse_plan

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
        return self.name != "static" and is_lossless(self.mode)


def rows_for(names: Sequence[str], *, has_mrp: bool, block_size: int) -> list[Row]:
    """The rows of these names that a model can decode, static first. No names: all rows.

    InvalidRequest for a name that is no plan.
    """
    published = set(map(parse_plan, _PUBLISHED))
    chosen = {parse_plan(name): name for name in ("static", *(names or (*_PUBLISHED, *_OURS)))}
    rows = [Row(name, mode, mode in published) for mode, name in chosen.items()]
    return [row for row in rows if (has_mrp or not row.mode.needs_mrp) and _fits(row.mode, block_size)]


def _fits(mode: DecodingMode, block_size: int) -> bool:
    try:
        mode.check(block_size)
    except InvalidRequest:
        return False
    return True
