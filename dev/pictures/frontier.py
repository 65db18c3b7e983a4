"""The picture of a frontier: accuracy against tokens a second at every load, and against tokens per forward.

A curve for every mode that is in view. The wide line joins the plans that no other plan beats, rings are presets.

Drawn for light and dark pages, as PNG. Knows the calibration file alone; needs matplotlib.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from service.quality.load_bands import at_load
from service.quality.schema import PlanResult, QualityFile

#: what the files are called, with `-dark` for dark pages
STEM = "frontier"
#: the share of accuracy that is shown below static's; what is worse would press all others together
_SHOWN = 0.25
#: nearer to static than this, points are too many for their knobs to be written beside them
_CROWDED = 0.015
#: panels beside each other
_COLUMNS = 2


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


@dataclass(frozen=True, slots=True)
class _View:
    """One panel: `across` has the value of each plan. `load`: the requests together; None: they do not matter."""

    across: Mapping[str, float]
    label: str
    title: str
    load: int | None = None


def _views(file: QualityFile) -> list[_View]:
    unit = "tokens a second of CPU time, one thread" if file.measured.clock == "cpu" else "tokens a second"
    loads = [_of_load(file, load, unit) for load in file.measured.concurrency]
    forwards = {row.plan.name: row.tokens_per_forward for row in file.rows}
    return [*loads, _View(forwards, "tokens per forward", "Forwards saved")]


def _of_load(file: QualityFile, load: int, unit: str) -> _View:
    speeds = {row.plan.name: row.speed_at(load).tokens_per_second for row in file.rows}
    return _View(speeds, unit, "One request" if load == 1 else f"{load} requests together", load)


def frontier_figure(file: QualityFile, page: Page) -> Figure:
    """All panels of a picture, two beside each other."""
    views = _views(file)
    lines = -(-len(views) // _COLUMNS)
    figure = Figure(figsize=(11.5, 0.6 + 4.2 * lines), layout="constrained")
    panels = list(figure.subplots(lines, _COLUMNS, sharey=True, squeeze=False).flat)
    for unused in panels[len(views) :]:
        unused.remove()
    for index, (axes, view) in enumerate(zip(panels, views, strict=False)):
        _panel(axes, file, view, page)
        axes.set(xlabel=view.label, title=view.title, ylabel="" if index % _COLUMNS else "accuracy")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.10g}%"))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=8)
    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # which lays out: labels are placed by what is where
    renderer: Any = canvas.get_renderer()  # type: ignore[no-untyped-call]
    for axes, view in zip(panels, views, strict=False):
        write_labels(axes, _labels(file, view, page), renderer)
    return figure


def _panel(axes: Axes, file: QualityFile, view: _View, page: Page) -> None:
    static, across = file.rows[0].accuracy, view.across
    visible = [row for row in file.rows if row.accuracy >= static - _SHOWN]
    _frontier_line(axes, file, view, page)
    for mode, rows in _by(file.rows, lambda row: row.plan.mode):
        if not any(row in visible for row in rows):
            continue
        for kind, (_, curve) in enumerate(_by(rows, _kind)):
            _curve(axes, curve, across, look_of(mode) | {"label": mode if not kind else "_"})
    for row, _ in _preset_rows(file, view):
        ring: dict[str, Any] = {"facecolors": "none", "edgecolors": page.ink, "linewidths": 1.6, "zorder": 4}
        axes.scatter(across[row.plan.name], row.accuracy, s=190, **ring)
    x = [across[row.plan.name] for row in visible]
    axes.set_xlim(min(x) - 0.1 * (max(x) - min(x)) - 1e-3, max(x) + 0.13 * (max(x) - min(x)) + 1e-3)
    lowest = min(static - file.margins.fast, *(row.accuracy for row in visible))
    axes.set_ylim(lowest - 0.05, max(row.accuracy for row in visible) + 0.05)
    axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 1.0])
    _margin_lines(axes, file, page)


def _frontier_line(axes: Axes, file: QualityFile, view: _View, page: Page) -> None:
    """Joins the plans on the frontier of a load, in steps: what is right and above of it no plan reaches.

    A file of version 1 has the frontier of one load only.
    """
    best = [row for row in file.rows if view.load is not None and row.speed_at(view.load).on_frontier]
    if not best:
        return
    points = sorted((view.across[row.plan.name], row.accuracy) for row in best)
    look: dict[str, Any] = {"color": page.ink, "alpha": 0.14, "linewidth": 6, "zorder": 1, "solid_joinstyle": "round"}
    axes.step(*zip(*points, strict=True), where="pre", gid="frontier", **look)


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


def _curve(axes: Axes, rows: Sequence[PlanResult], across: Mapping[str, float], look: dict[str, Any]) -> None:
    points = sorted(rows, key=lambda row: across[row.plan.name])
    x, y = [across[row.plan.name] for row in points], [row.accuracy for row in points]
    away = [[row.accuracy - row.accuracy_low for row in points], [row.accuracy_high - row.accuracy for row in points]]
    axes.errorbar(x, y, away, ecolor=look["color"], elinewidth=0.8, alpha=0.9, zorder=3, **look)


def _preset_rows(file: QualityFile, view: _View) -> list[tuple[PlanResult, str]]:
    """The row of every preset at a panel's load, and its names: presets that are the same plan share it."""
    if view.load is None:
        return []
    rows, load = {row.plan.name: row for row in file.rows}, view.load
    plans = _by(file.presets, lambda name: at_load(file.presets[name], load).name)
    return [(rows[plan], " = ".join(names)) for plan, names in plans]


def _labels(file: QualityFile, view: _View, page: Page) -> Iterator[Label]:
    """Names of presets, and beside the points that are far enough from static the knobs in which they differ."""
    halo = [withStroke(linewidth=3, foreground=page.paper)]
    for row, name in _preset_rows(file, view):
        style = {"fontweight": "bold", "zorder": 5, "path_effects": halo, "gid": f"preset {name}"}
        yield Label(name, (view.across[row.plan.name], row.accuracy), style, away=9, needed=True)
    for _, rows in _by(file.rows, lambda row: (row.plan.mode, _kind(row))):
        for row in rows:
            if (varied := _varied(row, rows)) and row.difference < -_CROWDED:
                colour = look_of(row.plan.mode)["color"]
                style = {"fontsize": 8, "color": colour, "zorder": 4, "path_effects": halo}
                yield Label(varied, (view.across[row.plan.name], row.accuracy), style)


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
