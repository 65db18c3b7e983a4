"""The picture of a calibration: accuracy against tokens a second and tokens per forward, a curve for every mode.

Drawn for light and dark pages, as PNG and SVG. Knows the calibration file alone; needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter

from service.quality.schema import QualityFile, Row
from service.quality.style import STYLE, series

#: what the files are called, with `-dark` for dark pages
STEM = "frontier"
#: the share of accuracy that is shown below static's; what is worse would press all others together
_SHOWN = 0.25
#: nearer to static than this, points are too many for their knobs to be written beside them
_CROWDED = 0.015


@dataclass(frozen=True, slots=True)
class _Page:
    """Colours of the page that a picture stands on."""

    suffix: str
    paper: str
    ink: str
    faint: str


_PAGES = (_Page("", "#ffffff", "#1f2328", "#d8dee4"), _Page("-dark", "#0d1117", "#e6edf3", "#30363d"))


def draw_frontier(file: QualityFile, folder: Path) -> list[Path]:
    """Writes the pictures; the same file gives the same pictures."""
    paths = []
    for page in _PAGES:
        with mpl.rc_context(_style(page)):
            figure = _figure(file, page)
            for kind, more in (("png", {"dpi": 130}), ("svg", {"metadata": {"Date": None}})):
                paths.append(folder / f"{STEM}{page.suffix}.{kind}")
                figure.savefig(paths[-1], **more)
    return paths


def _style(page: _Page) -> dict[Any, Any]:
    return {
        **STYLE,
        "svg.hashsalt": STEM,
        "grid.color": page.faint,
        "axes.edgecolor": page.ink,
        "axes.labelcolor": page.ink,
        "axes.facecolor": page.paper,
        "figure.facecolor": page.paper,
        "savefig.facecolor": page.paper,
        "text.color": page.ink,
        "xtick.color": page.ink,
        "ytick.color": page.ink,
    }


def _figure(file: QualityFile, page: _Page) -> Figure:
    figure = Figure(figsize=(11.5, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    at = file.measured.chosen_at
    speeds = {row.plan.name: row.speed_at(at).tokens_per_second for row in file.rows}
    unit = "tokens a second of CPU time, one thread" if file.measured.clock == "cpu" else "tokens a second"
    _panel(left, file, speeds, page)
    left.set(xlabel=f"{unit}, {at} requests together", ylabel="accuracy", title="Quality against speed")
    forwards = {row.plan.name: row.tokens_per_forward for row in file.rows}
    _panel(right, file, forwards, page)
    right.set(xlabel="tokens per forward", title="Quality against forwards saved")
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=8)
    return figure


def _panel(axes: Axes, file: QualityFile, across: dict[str, float], page: _Page) -> None:
    static = file.rows[0].accuracy
    for number, (mode, rows) in enumerate(_by(file.rows, lambda row: row.plan.mode)):
        for kind, (_, curve) in enumerate(_by(rows, _kind)):
            _curve(axes, curve, across, series(number) | {"label": mode if not kind else "_"})
    _mark_presets(axes, file, across, page)
    shown = [row for row in file.rows if row.accuracy >= static - _SHOWN]
    x = [across[row.plan.name] for row in shown]
    axes.set_xlim(min(x) - 0.1 * (max(x) - min(x)) - 1e-3, max(x) + 0.13 * (max(x) - min(x)) + 1e-3)
    axes.set_ylim(min(row.accuracy for row in shown) - 0.05, max(row.accuracy for row in shown) + 0.05)
    axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 1.0])
    _margin_lines(axes, file, page)


def _margin_lines(axes: Axes, file: QualityFile, page: _Page) -> None:
    """Static's accuracy, and how far below it the other presets may be."""
    static = file.rows[0].accuracy
    look: dict[str, Any] = {"color": page.ink, "alpha": 0.6}
    for margin, dash in ((0.0, "-"), (file.margins.balanced, "--"), (file.margins.fast, ":")):
        axes.axhline(static - margin, linewidth=0.9, linestyle=dash, zorder=1, **look)
        below = f"{100 * margin:g} point{'' if margin == 0.01 else 's'} below"
        name, offset, side = (below, -3, "top") if margin else ("static", 3, "bottom")
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
        axes.annotate(name, (1, static - margin), (0, offset), va=side, fontsize=8, **place, **look)


def _curve(axes: Axes, rows: Sequence[Row], across: dict[str, float], look: dict[str, Any]) -> None:
    points = sorted(rows, key=lambda row: across[row.plan.name])
    x, y = [across[row.plan.name] for row in points], [row.accuracy for row in points]
    away = [[row.accuracy - row.accuracy_low for row in points], [row.accuracy_high - row.accuracy for row in points]]
    axes.errorbar(x, y, away, ecolor=look["color"], elinewidth=0.8, alpha=0.9, zorder=3, **look)
    for row, point in zip(points, zip(x, y, strict=True), strict=True):
        if (label := _varied(row, points)) and row.difference < -_CROWDED:
            style = {"fontsize": 8, "color": look["color"], "annotation_clip": True, "zorder": 4}
            axes.annotate(label, point, (5, -11), textcoords="offset points", **style)


def _mark_presets(axes: Axes, file: QualityFile, across: dict[str, float], page: _Page) -> None:
    """A ring around each preset, its name above; presets that are the same plan share both."""
    rows = {row.plan.name: row for row in file.rows}
    for plan, names in _by(file.presets.items(), lambda item: item[1].name):
        point = across[plan], rows[plan].accuracy
        axes.scatter(*point, s=190, facecolors="none", edgecolors=page.ink, linewidths=1.6, zorder=4)
        label = " = ".join(name for name, _ in names)
        halo = [withStroke(linewidth=3, foreground=page.paper)]
        place: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontweight": "bold", "zorder": 5}
        axes.annotate(label, point, (0, 13), path_effects=halo, gid=f"preset {label}", **place)


def _kind(row: Row) -> tuple[Any, ...]:
    """Rows that differ in the value of a knob make a curve; others of the mode another one."""
    return row.lossless, tuple(row.plan.knobs)


def _varied(row: Row, curve: Sequence[Row]) -> str:
    """The values of the knobs that change along a curve."""
    knobs = row.plan.knobs
    return ", ".join(str(knobs[name]) for name in knobs if len({str(each.plan.knobs[name]) for each in curve}) > 1)


def _by(items: Iterable[Any], key: Any) -> list[tuple[Any, list[Any]]]:
    """Items in groups of the same key, in the order of the first of each."""
    listed = list(items)
    order = {value: number for number, value in reversed(list(enumerate(map(key, listed))))}
    ranked = sorted(listed, key=lambda item: order[key(item)])
    return [(value, list(group)) for value, group in groupby(ranked, key)]
