"""What `python -m loadtest.settings` measured, and its table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.settings.known import SHIPPED

#: measure -> heading, digits after the point
_COLUMNS = {
    "lone_more_p50_ms": ("lone answer, + ms p50", 2),
    "lone_more_p99_ms": ("+ ms p99", 1),
    "tokens_per_s": ("tokens/s", 0),
    "live_p50_ms": ("`/live` ms", 2),
    "rest_cpu_ms": ("CPU at rest, ms/s", 0),
}


@dataclass(frozen=True)
class Found:
    """What was measured of one setting in one round. `error`: why nothing was."""

    setting: str
    round: int
    lone_more_p50_ms: float = 0.0
    lone_more_p99_ms: float = 0.0
    live_p50_ms: float = 0.0
    tokens_per_s: float = 0.0
    rest_cpu_ms: float = 0.0
    error: str = ""


def table(found: Sequence[Found], names: Sequence[str]) -> str:
    """A Markdown table: medians of the rounds, and in brackets the median difference from `SHIPPED` in a round."""
    heads = ["setting", "rounds", *(heading for heading, _ in _COLUMNS.values())]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    shipped = {one.round: one for one in found if one.setting == SHIPPED and not one.error}
    for name in names:
        mine = [one for one in found if one.setting == name and not one.error]
        if mine:
            values = [_value(mine, shipped, measure) for measure in _COLUMNS]
        else:
            why = next((one.error for one in found if one.setting == name), "not measured")
            values = [why, *[""] * (len(_COLUMNS) - 1)]
        lines.append(f"| {' | '.join([name, str(len(mine)), *values])} |")
    return "\n".join(lines)


def _value(mine: Sequence[Found], shipped: Mapping[int, Found], measure: str) -> str:
    digits = _COLUMNS[measure][1]
    median = statistics.median(getattr(one, measure) for one in mine)
    pairs = [(one, shipped[one.round]) for one in mine if one.round in shipped]
    if not pairs or mine[0].setting == SHIPPED:
        return f"{median:.{digits}f}"
    difference = statistics.median(getattr(one, measure) - getattr(other, measure) for one, other in pairs)
    return f"{median:.{digits}f} ({difference:+.{digits}f})"
