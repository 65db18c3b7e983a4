"""Makes the calibration file of measured rows: marks the frontier, chooses the presets, adds warnings."""

from __future__ import annotations

from collections.abc import Sequence

from service.quality.frontier import choose, warnings_of, with_frontier
from service.quality.schema import Identity, Margins, Measured, QualityFile, Row


def assemble(
    checkpoint: Identity, measured: Measured, rows: Sequence[Row], margins: Margins | None = None
) -> QualityFile:
    """The calibration file of the measured `rows`."""
    margins = margins or Margins()
    marked = with_frontier(rows, measured.chosen_at)
    presets = choose(marked, measured.chosen_at, margins)
    return QualityFile(
        version=1,
        checkpoint=checkpoint,
        measured=measured,
        margins=margins,
        presets={name: row.plan for name, row in presets.items()},
        warnings=warnings_of(marked, presets, measured.chosen_at, margins),
        rows=marked,
    )
