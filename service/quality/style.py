"""The style of all pictures: Okabe and Ito's colours, which colour-blind readers can tell apart, and markers.

The colours are visible on white and on black.
"""

from __future__ import annotations

from typing import Any

from service.decode.modes import MODES

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
#: one more marker than colours, so that many series differ from each other
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")

#: matplotlib's settings that all pictures share
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.7,
    "lines.markersize": 6,
    "legend.frameon": False,
}


def series(number: int) -> dict[str, str]:
    """Colour and marker of the n-th series."""
    return {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}


def look_of(mode: str) -> dict[str, str]:
    """Colour and marker of a mode, the same in every picture."""
    names = list(MODES)
    return series(names.index(mode) if mode in names else len(names))
