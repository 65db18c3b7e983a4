"""Axes that several pictures of the report share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.style import STYLE

GREY = "#666666"
_STYLE = {**STYLE, "grid.color": "#dddddd", "figure.facecolor": "white"}


@contextmanager
def picture(path: Path, panels: int = 1) -> Iterator[list[Axes]]:
    """Axes side by side, saved as a PNG at the end. Does not use pyplot's global state and needs no display."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.2 * panels, 4.4), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0]
        yield list(axes)
        figure.savefig(path, dpi=110)


def levels(axes: Axes, values: Sequence[float], label: str) -> None:
    """Sets up a logarithmic axis of concurrency, with a tick at every measured level."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(values))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(label)


def milliseconds(axes: Axes, label: str) -> None:
    """Sets up a logarithmic axis of times, with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(_halves))
    axes.set_ylabel(label)


def _halves(value: float, _: int) -> str:
    first = f"{value:e}"[0]
    return f"{value:,.0f}" if first in "25" else ""
