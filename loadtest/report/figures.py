"""The pictures: throughput, latency and tokens per forward against load, modes alone and mixed, arrivals, a soak."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.style import STYLE, series
from loadtest.report.scenario import Slo
from loadtest.report.summary import Point, saturation

USERS = "concurrent users (closed loop)"
RATE = "requests a second that arrive (Poisson)"
GREY = "#666666"

Runs = Mapping[str, Sequence[Point]]


@contextmanager
def picture(path: Path, panels: int) -> Iterator[list[Axes]]:
    """Axes side by side, saved as a PNG at the end. Does not use pyplot's global state and needs no display."""
    with mpl.rc_context({**STYLE, "grid.color": "#dddddd", "figure.facecolor": "white"}):
        figure = Figure(figsize=(6.2 * panels, 4.4), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0]
        yield list(axes)
        figure.savefig(path, dpi=110)


def modes(runs: Runs, slo: Slo, folder: Path) -> None:
    """The closed loops of one mode: throughput with a ring at saturation, goodput, latency, tokens per forward."""
    with picture(folder / "throughput.png", 2) as [tokens, good]:
        _curves(tokens, runs, {"tokens_per_s": "-"}, "Throughput (ring: saturation)", "tokens a second, all users")
        title = f"Goodput (first block ≤ {slo.first_block_ms:g} ms, gaps ≤ {slo.gap_ms:g} ms)"
        _curves(good, runs, {"good_per_s": "-"}, title, "good requests a second")
        for number, points in enumerate(runs.values()):
            if point := saturation(points):
                ring = {"s": 190, "facecolors": "none", "edgecolors": series(number)["color"], "linewidths": 1.6}
                tokens.scatter([point.level], [point.tokens_per_s], **ring)
        tokens.legend()
    with picture(folder / "latency.png", 2) as [first, gap]:
        for axes, measure, title, limit in (
            (first, "first_block", "Time to first block", slo.first_block_ms),
            (gap, "gap", "Time between blocks", slo.gap_ms),
        ):
            lines = {f"{measure}_p95_ms": "-", f"{measure}_p50_ms": ":"}
            _curves(axes, runs, lines, title, "milliseconds: p95 (line), p50 (dotted)", limit)
        first.legend()
    with picture(folder / "forwards.png", 2) as [of_request, of_engine]:
        _curves(of_request, runs, {"tokens_per_forward": "-"}, "Tokens per forward, of one request", "tokens")
        _curves(of_engine, runs, {"tokens_per_engine_forward": "-"}, "The same of the engine, all requests", "tokens")
        of_request.legend()


def arrivals(runs: Runs, slo: Slo, folder: Path) -> None:
    with picture(folder / "arrivals.png", 2) as [served, waited]:
        lines = {"good_per_s": "-", "requests_per_s": ":"}
        _curves(served, runs, lines, "In time (line), answered (dotted)", "requests a second")
        lines, unit = (
            {"first_block_p95_ms": "-", "first_block_p50_ms": ":"},
            "ms from arrival: p95 (line), p50 (dotted)",
        )
        _curves(waited, runs, lines, "Time to first block", unit, slo.first_block_ms)
        highest = max(_load(point) for points in runs.values() for point in points)
        served.plot([0, highest], [0, highest], color=GREY, linestyle="--", linewidth=1, label="all that arrive")
        served.legend()


def together(pairs: Sequence[tuple[Point, Point]], folder: Path) -> None:
    panels = (("Time to first block, p95", "first_block_p95_ms"), ("Time between blocks, p95", "gap_p95_ms"))
    with picture(folder / "together.png", 2) as both:
        for axes, (title, measure) in zip(both, panels, strict=True):
            for index, label in enumerate(("alone", "beside all others")):
                values = [getattr(pair[index], measure) or 0.0 for pair in pairs]
                left = [number + 0.4 * index - 0.2 for number in range(len(pairs))]
                bars = axes.bar(left, values, 0.38, color=series(index)["color"], label=label)
                axes.bar_label(bars, fmt="{:.0f}", fontsize=9, padding=2)
            axes.set_xticks(range(len(pairs)), [mixed.mode.replace("@", "\n") for _, mixed in pairs], fontsize=9)
            axes.grid(axis="x", visible=False)
            axes.set_axisbelow(True)
            axes.margins(y=0.22)
            axes.set(title=title, ylabel="milliseconds")
        both[0].legend(loc="upper left", ncols=2)


def capacity(probes: Sequence[Point], limits: tuple[float, float], rate: float, path: Path) -> None:
    panels = (("Time to first block, p95", "first_block_p95_ms"), ("Time between blocks, p95", "gap_p95_ms"))
    with picture(path, 2) as both:
        for axes, (title, measure), limit in zip(both, panels, limits, strict=True):
            points = [(_load(point), value) for point in probes if (value := getattr(point, measure)) is not None]
            axes.scatter([x for x, _ in points], [y for _, y in points], color=series(0)["color"], label="probes")
            axes.axvline(rate, color=series(1)["color"], linewidth=1.5, label=f"capacity: {rate:.3g} a second")
            axes.set_xlim(left=0)
            axes.set(title=title, xlabel=RATE, ylabel="milliseconds")
            _milliseconds(axes, limit)
        both[0].legend()


def soak(
    parts: Sequence[Point], seconds: float, memory: Sequence[tuple[float, Mapping[str, float]]], path: Path
) -> None:
    """Times, throughput and memory over the minutes of a soak. `memory`: seconds, and the MiB of each process then."""
    minutes = [(number + 0.5) * seconds / len(parts) / 60 for number in range(len(parts))]
    with picture(path, 3) as [times, tokens, resident]:
        lines = {"first_block_p50_ms": "first block", "gap_p50_ms": "between blocks", "total_p50_ms": "whole answer"}
        for number, (measure, label) in enumerate(lines.items()):
            times.plot(minutes, [getattr(part, measure) for part in parts], label=label, **series(number))
        tokens.plot(minutes, [part.tokens_per_s for part in parts], **series(0))
        for number, name in enumerate(sorted({name for _, mib in memory for name in mib})):
            course = [(at / 60, mib[name]) for at, mib in memory if name in mib]
            resident.plot(*zip(*course, strict=True), label=name.partition(" ")[0], color=series(number)["color"])
        for axes, title, unit in (
            (times, "Times, p50", "milliseconds"),
            (tokens, "Throughput", "tokens a second"),
            (resident, "Resident memory", "MiB"),
        ):
            axes.set(title=title, ylabel=unit, xlabel="minutes after the warm-up", xlim=(0, seconds / 60))
            axes.set_ylim(bottom=0)
        times.legend()
        resident.legend()


def _curves(
    axes: Axes, runs: Runs, measures: Mapping[str, str], title: str, unit: str, limit: float | None = None
) -> None:
    """Measures against load, with the style of each line. A closed loop has a logarithmic axis of its levels.

    `limit`: the objective of times in milliseconds. None: other measures.
    """
    for number, (name, points) in enumerate(runs.items()):
        for measure, line in measures.items():
            values = [(_load(point), value) for point in points if (value := getattr(point, measure)) is not None]
            style = {**series(number), "linestyle": line, "label": name if line == "-" else None}
            axes.plot([x for x, _ in values], [y for _, y in values], **style)
    axes.set(title=title, ylabel=unit)
    if limit is None:
        axes.set_ylim(bottom=0)
    else:
        _milliseconds(axes, limit)
    levels = {point.level for points in runs.values() for point in points if point.loop == "closed"}
    if not levels:
        axes.set_xlim(left=0)
        axes.set_xlabel(RATE)
        return
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(levels)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(USERS)


def _milliseconds(axes: Axes, limit: float) -> None:
    axes.axhline(limit, color=GREY, linestyle="--", linewidth=1, label="objective")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:,g}" if f"{value:e}"[0] in "25" else ""))


def _load(point: Point) -> float:
    """The load of a point: users, or the actual rate of random arrivals, which may differ from the intended one."""
    return point.level if point.loop == "closed" else point.requests / point.seconds
