"""The pictures: throughput, latency, goodput and tokens per forward against load, and the mix beside each mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes

from benchmarks.style import series
from loadtest.report import style
from loadtest.report.scenario import Slo
from loadtest.report.summary import Point, saturation

USERS = "concurrent users (closed loop)"
RATE = "requests a second that arrive (Poisson)"

Measure = Callable[[Point], float | None]
Runs = dict[str, list[Point]]


@dataclass(frozen=True)
class Course:
    """Memory over time: seconds, and the MiB of each process at these times."""

    at: list[float]
    mib: list[dict[str, float]]


def throughput(runs: Runs, slo: Slo, path: Path) -> None:
    """Tokens per second against users, with a ring at saturation, and requests per second within the objective."""
    with style.picture(path, 2) as [tokens, good]:
        for number, (name, found) in enumerate(runs.items()):
            look = series(number)
            _line(tokens, found, _named("tokens_per_s"), {**look, "label": name})
            _line(good, found, _named("good_per_s"), look)
            if point := saturation(found):
                ring = {"s": 190, "facecolors": "none", "edgecolors": look["color"], "linewidths": 1.6}
                tokens.scatter([point.level], [point.tokens_per_s], **ring)
        for axes in (tokens, good):
            style.levels(axes, _levels(runs), USERS)
            axes.set_ylim(bottom=0)
        tokens.set_ylabel("tokens a second, all users")
        tokens.set_title("Throughput (ring: saturation)")
        tokens.legend()
        good.set_ylabel("good requests a second")
        good.set_title(f"Goodput (first block ≤ {slo.first_block_ms:g} ms, gaps ≤ {slo.gap_ms:g} ms)")


def latency(runs: Runs, slo: Slo, path: Path) -> None:
    """Time to first block and between blocks against users, p50 and p95."""
    panels = (
        ("Time to first block", "first_block", slo.first_block_ms),
        ("Time between blocks", "gap", slo.gap_ms),
    )
    with style.picture(path, 2) as both:
        for axes, (title, measure, limit) in zip(both, panels, strict=True):
            for number, (name, found) in enumerate(runs.items()):
                look = series(number)
                _line(axes, found, _named(f"{measure}_p95_ms"), {**look, "label": f"{name}"})
                _line(axes, found, _named(f"{measure}_p50_ms"), {**look, "linestyle": ":", "alpha": 0.75})
            axes.axhline(limit, color=style.GREY, linestyle="--", linewidth=1)
            axes.annotate("objective", (0.01, limit), xycoords=("axes fraction", "data"), color=style.GREY, va="bottom")
            style.levels(axes, _levels(runs), USERS)
            style.milliseconds(axes, "milliseconds: p95 (line), p50 (dotted)")
            axes.set_title(title)
        both[0].legend()


def arrivals(runs: Runs, slo: Slo, path: Path) -> None:
    """Random arrivals: the rate of answers, the rate of answers in time, and the time to the first block."""
    with style.picture(path, 2) as [served, waited]:
        highest = max(_load(point) for found in runs.values() for point in found)
        served.plot([0, highest], [0, highest], color=style.GREY, linestyle="--", linewidth=1, label="all that arrive")
        for number, (name, found) in enumerate(runs.items()):
            look = series(number)
            _line(served, found, _named("good_per_s"), {**look, "label": f"{name}: in time"})
            _line(served, found, _named("requests_per_s"), {**look, "linestyle": ":", "label": f"{name}: answered"})
            _line(waited, found, _named("first_block_p95_ms"), {**look, "label": f"{name}: p95"})
            _line(waited, found, _named("first_block_p50_ms"), {**look, "linestyle": ":", "label": f"{name}: p50"})
        waited.axhline(slo.first_block_ms, color=style.GREY, linestyle="--", linewidth=1, label="objective")
        style.milliseconds(waited, "milliseconds from arrival")
        served.set_ylabel("requests a second")
        served.set_title("Served and in time")
        waited.set_title("Time to first block")
        for axes in (served, waited):
            axes.set_xlim(left=0)
            axes.set_xlabel(RATE)
            axes.legend()
        served.set_ylim(bottom=0)


def forwards(runs: Runs, path: Path) -> None:
    """Tokens per forward of a request, which does not depend on load, and of the engine, which does."""
    panels = {"tokens_per_forward": "Tokens per forward, of one request"}
    if any(point.tokens_per_engine_forward is not None for found in runs.values() for point in found):
        panels["tokens_per_engine_forward"] = "Tokens per forward of the engine, all requests"
    with style.picture(path, len(panels)) as every:
        for axes, (measure, title) in zip(every, panels.items(), strict=True):
            for number, (name, found) in enumerate(runs.items()):
                _line(axes, found, _named(measure), {**series(number), "label": name})
            style.levels(axes, _levels(runs), USERS)
            axes.set_ylim(bottom=0)
            axes.set_ylabel("tokens")
            axes.set_title(title)
        every[0].legend()


def together(alone: Sequence[Point], mixed: Sequence[Point], path: Path) -> None:
    """Each mode alone and beside the others, at the same concurrency."""
    panels = (("Time to first block, p95", "first_block_p95_ms"), ("Time between blocks, p95", "gap_p95_ms"))
    with style.picture(path, 2) as both:
        for axes, (title, measure) in zip(both, panels, strict=True):
            for offset, colour, label, found in (
                (-0.2, series(0)["color"], "alone", alone),
                (0.2, series(1)["color"], "beside all others", mixed),
            ):
                values = [_named(measure)(point) or 0.0 for point in found]
                bars = axes.bar(
                    [number + offset for number in range(len(found))], values, 0.38, color=colour, label=label
                )
                axes.bar_label(bars, fmt="{:.0f}", fontsize=9, padding=2)
            axes.set_xticks(range(len(mixed)), [point.mode.replace("@", "\n") for point in mixed], fontsize=9)
            axes.grid(axis="x", visible=False)
            axes.set_axisbelow(True)
            axes.set_ylabel("milliseconds")
            axes.margins(y=0.22)
            axes.set_title(title)
        both[0].legend(loc="upper left", ncols=2)


def _line(axes: Axes, found: Sequence[Point], measure: Measure, look: dict) -> None:
    known = [(_load(point), value) for point in found if (value := measure(point)) is not None]
    if known:
        axes.plot(*zip(*known, strict=True), **look)


def _load(point: Point) -> float:
    """The load of a point: users, or the actual rate of random arrivals, which may differ from the intended one."""
    return point.level if point.loop == "closed" else point.requests / point.seconds


def _named(measure: str) -> Measure:
    return lambda point: getattr(point, measure)


def _levels(runs: Runs) -> list[float]:
    return [point.level for found in runs.values() for point in found]


def capacity(tried: Sequence[Point], limits: tuple[float, float], rate: float, path: Path) -> None:
    """Every probed rate with its p95 times, the objective and the rate that was found."""
    panels = (("Time to first block, p95", "first_block_p95_ms"), ("Time between blocks, p95", "gap_p95_ms"))
    with style.picture(path, 2) as both:
        for axes, (title, measure), limit in zip(both, panels, limits, strict=True):
            known = [(_load(point), value) for point in tried if (value := _named(measure)(point)) is not None]
            if known:
                axes.scatter(*zip(*known, strict=True), color=series(0)["color"], label="probes")
            axes.axhline(limit, color=style.GREY, linestyle="--", linewidth=1, label="objective")
            axes.axvline(rate, color=series(1)["color"], linewidth=1.5, label=f"capacity: {rate:.3g} a second")
            axes.set_xlim(left=0)
            style.milliseconds(axes, "milliseconds from arrival" if measure.startswith("first") else "milliseconds")
            axes.set_xlabel(RATE)
            axes.set_title(title)
        both[0].legend()


def soak(parts: Sequence[Point], seconds: float, memory: Course, path: Path) -> None:
    """Times, throughput and memory of each process over the minutes of a soak."""
    minutes = [(number + 0.5) * seconds / len(parts) / 60 for number in range(len(parts))]
    with style.picture(path, 3) as [times, tokens, held]:
        lines = {"first_block_p50_ms": "first block", "gap_p50_ms": "between blocks", "total_p50_ms": "whole answer"}
        for number, (measure, label) in enumerate(lines.items()):
            times.plot(minutes, [getattr(part, measure) for part in parts], label=label, **series(number))
        tokens.plot(minutes, [part.tokens_per_s for part in parts], **series(0))
        for number, name in enumerate(sorted({name for mib in memory.mib for name in mib})):
            known = [(at / 60, mib[name]) for at, mib in zip(memory.at, memory.mib, strict=True) if name in mib]
            held.plot(*zip(*known, strict=True), label=name.partition(" ")[0], color=series(number)["color"])
        for axes, title, unit in (
            (times, "Times, p50", "milliseconds"),
            (tokens, "Throughput", "tokens a second"),
            (held, "Resident memory", "MiB"),
        ):
            axes.set(title=title, ylabel=unit, xlabel="minutes after the warm-up", xlim=(0, seconds / 60))
            axes.set_ylim(bottom=0)
        times.legend()
        held.legend()
