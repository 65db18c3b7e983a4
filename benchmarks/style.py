"""The style of all pictures: Okabe and Ito's colours, which colour-blind readers can tell apart, and markers.

The colours are visible on white and on black. The states of a cell have the playground's names and colours.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import service.gateway.playground
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


def series(index: int) -> dict[str, str]:
    """Colour and marker of the n-th series."""
    return {"color": _COLOURS[index % len(_COLOURS)], "marker": _MARKERS[index % len(_MARKERS)]}


def look_of(mode: str) -> dict[str, str]:
    """Colour and marker of a mode, the same in every picture."""
    names = list(MODES)
    return series(names.index(mode) if mode in names else len(names))


@dataclass(frozen=True, slots=True)
class State:
    """A state of a cell while its block is decoded. `light`, `dark`: its colour on white and on black."""

    label: str
    light: str
    dark: str


_STATES_FILE = Path(service.gateway.playground.__file__).parent / "page" / "states.json"
STATES: Mapping[str, State] = {
    name: State(**state) for name, state in json.loads(_STATES_FILE.read_text(encoding="utf-8")).items()
}
