"""The picture of a request's CPU time by process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loadtest.overhead.cpu import PARTS, Spent
from loadtest.report import style
from service.quality.style import series


def draw(found: Mapping[str, Spent], path: Path) -> None:
    """A bar for each kind of request, its parts one behind the other."""
    with style.picture(path, 1) as [axes]:
        names, left = list(found), [0.0] * len(found)
        for number, part in enumerate(PARTS):
            widths = [found[name].cpu_ms[part] for name in names]
            if max(widths) < 0.005:
                continue
            axes.barh(names, widths, left=left, label=part, color=series(number)["color"], height=0.55)
            left = [before + width for before, width in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set_xlabel("CPU milliseconds a request")
        axes.set_title("Where a request's CPU time goes")
        axes.legend(loc="lower right")
