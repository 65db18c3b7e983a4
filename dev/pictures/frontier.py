"""The picture of a frontier: accuracy against tokens per forward.

A curve for every mode that is in view. The wide line joins the plans that no other plan beats. Rings are plans of
presets.

Drawn for light and dark pages, as PNG. Knows the calibration file alone; needs matplotlib.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter

from benchmarks.style import STYLE, look_of
from dev.pictures.labels import Label, write_labels
from service.quality.schema import QUALITIES, PlanResult, QualityFile

#: what the files are called, with `-dark` for dark pages
STEM = "frontier"
#: the share of accuracy that is shown below static's; what is worse would press all others together
_SHOWN = 0.25
#: nearer to static than this, points are too many for their knobs to be written beside them
_CROWDED = 0.015


@dataclass(frozen=True, slots=True)
class Page:
    """Colours of the page that a picture stands on."""

    suffix: str
    paper: str
    ink: str
    faint: str


PAGES = (Page("", "#ffffff", "#1f2328", "#d8dee4"), Page("-dark", "#0d1117", "#e6edf3", "#30363d"))


def draw_frontier(file: QualityFile, folder: Path) -> list[Path]:
    """Writes the pictures; the same file gives the same pictures."""
    paths = []
    for page in PAGES:
        with mpl.rc_context(page_style(page)):
            figure = frontier_figure(file, page)
            paths.append(folder / f"{STEM}{page.suffix}.png")
            figure.savefig(paths[-1], dpi=130)
    return paths


def page_style(page: Page) -> dict[Any, Any]:
    """matplotlib's settings for a page."""
    return {
        **STYLE,
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


def frontier_figure(file: QualityFile, page: Page) -> Figure:
    """The whole picture."""
    figure = Figure(figsize=(11.5, 5.6), layout="constrained")
    axes = figure.subplots()
    _curves(axes, file, page)
    axes.set(xlabel="tokens per forward", ylabel="accuracy")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.10g}%"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=8)
    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # which lays out: labels are placed by what is where
    renderer: Any = canvas.get_renderer()  # type: ignore[no-untyped-call]
    write_labels(axes, _labels(file, page), renderer)
    return figure


def _curves(axes: Axes, file: QualityFile, page: Page) -> None:
    static = file.rows[0].accuracy
    visible = [row for row in file.rows if row.accuracy >= static - _SHOWN]
    _frontier_line(axes, file, page)
    for mode, rows in _by(file.rows, lambda row: row.plan.mode):
        if not any(row in visible for row in rows):
            continue
        for kind, (_, curve) in enumerate(_by(rows, _kind)):
            _curve(axes, curve, look_of(mode) | {"label": mode if not kind else "_"})
    for row, _ in _preset_rows(file):
        ring: dict[str, Any] = {"facecolors": "none", "edgecolors": page.ink, "linewidths": 1.6, "zorder": 4}
        axes.scatter(*_point(row), s=190, **ring)
    x = [row.tokens_per_forward for row in visible]
    axes.set_xlim(min(x) - 0.1 * (max(x) - min(x)) - 1e-3, max(x) + 0.13 * (max(x) - min(x)) + 1e-3)
    lowest = min(static - file.margins.fast, *(row.accuracy for row in visible))
    axes.set_ylim(lowest - 0.05, max(row.accuracy for row in visible) + 0.05)
    axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 1.0])
    _margin_lines(axes, file, page)


def _point(row: PlanResult) -> tuple[float, float]:
    return row.tokens_per_forward, row.accuracy


def _frontier_line(axes: Axes, file: QualityFile, page: Page) -> None:
    """Joins the plans on the frontier, in steps: the area right of it and above it is empty."""
    look: dict[str, Any] = {"color": page.ink, "alpha": 0.14, "linewidth": 6, "zorder": 1, "solid_joinstyle": "round"}
    axes.step(*zip(*map(_point, file.frontier), strict=True), where="pre", gid="frontier", **look)


def _margin_lines(axes: Axes, file: QualityFile, page: Page) -> None:
    """Static's accuracy, and how far below it the other presets may be."""
    static = file.rows[0].accuracy
    look: dict[str, Any] = {"color": page.ink, "alpha": 0.6}
    for margin, dash in ((0.0, "-"), (file.margins.balanced, "--"), (file.margins.fast, ":")):
        axes.axhline(static - margin, linewidth=0.9, linestyle=dash, zorder=1, **look)
        below = f"{100 * margin:g} point{'' if margin == 0.01 else 's'} below"
        name, offset, side = (below, -3, "top") if margin else ("static", 3, "bottom")
        anchor: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
        axes.annotate(name, (1, static - margin), (0, offset), va=side, fontsize=8, **anchor, **look)


def _curve(axes: Axes, rows: Sequence[PlanResult], look: dict[str, Any]) -> None:
    points = sorted(rows, key=_point)
    x, y = zip(*map(_point, points), strict=True)
    away = [[row.accuracy - row.accuracy_low for row in points], [row.accuracy_high - row.accuracy for row in points]]
    axes.errorbar(x, y, away, ecolor=look["color"], elinewidth=0.8, alpha=0.9, zorder=3, **look)


def _preset_rows(file: QualityFile) -> list[tuple[PlanResult, str]]:
    """The row of every plan of a preset, and the preset of the smallest margin that has it."""
    rows = {row.plan.name: row for row in file.rows}
    presets = {plan.name: name for name in reversed(QUALITIES) for plan in file.presets[name]}
    return [(rows[plan], name) for plan, name in presets.items()]


def _labels(file: QualityFile, page: Page) -> Iterator[Label]:
    """Names of presets, and beside the points that are far enough from static the knobs in which they differ."""
    halo = [withStroke(linewidth=3, foreground=page.paper)]
    for row, name in _preset_rows(file):
        style = {"fontweight": "bold", "zorder": 5, "path_effects": halo, "gid": f"preset {name}"}
        yield Label(name, _point(row), style, away=9, needed=True)
    for _, rows in _by(file.rows, lambda row: (row.plan.mode, _kind(row))):
        for row in rows:
            if (varied := _varied(row, rows)) and row.difference < -_CROWDED:
                colour = look_of(row.plan.mode)["color"]
                style = {"fontsize": 8, "color": colour, "zorder": 4, "path_effects": halo}
                yield Label(varied, _point(row), style)


def _kind(row: PlanResult) -> tuple[Any, ...]:
    """Rows that differ in the value of a knob make a curve; others of the mode another one."""
    return row.lossless, tuple(row.plan.knobs)


def _varied(row: PlanResult, curve: Sequence[PlanResult]) -> str:
    knobs = row.plan.knobs
    return ", ".join(str(knobs[name]) for name in knobs if len({str(each.plan.knobs[name]) for each in curve}) > 1)


def _by(items: Iterable[Any], key: Any) -> list[tuple[Any, list[Any]]]:
    """Items in groups of the same key, in the order of the first of each."""
    listed = list(items)
    order = {value: index for index, value in reversed(list(enumerate(map(key, listed))))}
    ranked = sorted(listed, key=lambda item: order[key(item)])
    return [(value, list(group)) for value, group in groupby(ranked, key)]
