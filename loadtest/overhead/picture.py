"""The picture of a request's CPU time by process, beside the engine's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.style import series
from loadtest.overhead.cpu import ENGINE, PARTS
from loadtest.report import style


def draw(found: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """A panel for each length of answers, a bar for each kind, its parts one behind the other.

    `found`: kind of answer -> milliseconds by part.
    """
    lengths = sorted({name.partition(", ")[2] for name in found}, key=len)
    with style.picture(path, len(lengths)) as panels:
        for axes, length in zip(panels, lengths, strict=True):
            names = [name for name in found if name.endswith(f", {length}")]
            left = [0.0] * len(names)
            for number, part in enumerate(part for part in PARTS if part != ENGINE):
                widths = [found[name][part] for name in names]
                axes.barh(names, widths, left=left, label=part, color=series(number)["color"], height=0.5)
                left = [before + width for before, width in zip(left, widths, strict=True)]
            engine = sum(found[name][ENGINE] for name in names) / len(names)
            axes.set_axisbelow(True)
            axes.grid(visible=False, axis="y")
            axes.invert_yaxis()
            axes.set_xlabel("CPU milliseconds a request")
            axes.set_title(f"{length}: beside {engine:.0f} ms of the engine")
        panels[-1].legend(loc="upper right")
