"""The probes of `loadtest.capacity` as rows of its result, and as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadtest.report.scenario import Slo
from loadtest.report.summary import Point

#: fields of a row, without `broken`, and their headings
_COLUMNS = {
    "rate": "rate",
    "arrived_per_s": "arrived/s",
    "answered_per_s": "answered/s",
    "tokens_per_s": "tokens/s",
    "goodput_per_s": "goodput/s",
    "goodput_tokens_per_s": "goodput tokens/s",
    "good_share": "good",
    "first_block_p95_ms": "first block p95 ms",
    "gap_p95_ms": "between blocks p95 ms",
}


def row(point: Point, broken: str) -> dict[str, Any]:
    """A probe's row. `rate` was asked for, `arrived_per_s` came. `broken`: why the rate does not hold, or empty."""
    return {
        "rate": point.level,
        "arrived_per_s": _rounded(point.requests / point.seconds),
        "answered_per_s": _rounded(point.requests_per_s),
        "tokens_per_s": _rounded(point.tokens_per_s),
        "goodput_per_s": _rounded(point.good_per_s),
        "goodput_tokens_per_s": _rounded(point.good_tokens_per_s),
        "good_share": _rounded(point.good_share),
        "first_block_p95_ms": _rounded(point.first_block_p95_ms),
        "gap_p95_ms": _rounded(point.gap_p95_ms),
        "broken": broken,
    }


def table(rows: Sequence[dict[str, Any]], goal: Slo) -> str:
    """A Markdown table of the rows by rate, under a line that names the goal of goodput."""
    heads = [*_COLUMNS.values(), "holds"]
    lines = [f"goodput: first block within {goal.first_block_ms:g} ms, each further one within {goal.gap_ms:g} ms", ""]
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for found in sorted(rows, key=lambda found: float(found["rate"])):
        values = ["-" if found[name] is None else f"{found[name]:g}" for name in _COLUMNS]
        lines.append(f"| {' | '.join([*values, found['broken'] or 'yes'])} |")
    return "\n".join(lines)


def _rounded(value: float | None) -> float | None:
    """To four digits."""
    return None if value is None else float(f"{value:.4g}")
