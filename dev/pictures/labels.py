"""Writes labels beside their points, inside the axes and over no other label or mark.

Of the places around a point, the one that crosses the fewest lines is chosen. A label without a free place is left
out, unless it is marked as needed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.path import Path
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

#: the places around a point: distances to the right and up, in units of the label's distance
_SIDES = ((0, 1.4), (1, -1), (1, 1), (-1, -1), (-1, 1), (0, -1.4), (1.6, 0), (-1.6, 0))
_FARTHER = (1.0, 2.2)
_ACROSS = {1: "left", 0: "center", -1: "right"}
_UP = {1: "bottom", 0: "center", -1: "top"}
#: the cost of a place over another label or mark, and of a place outside the axes; a crossed line costs 1
_COVERS, _LEAVES = 100, 1000
_POINTS_PER_INCH = 72


@dataclass(frozen=True, slots=True)
class Label:
    """A text for a point of the data. `away`: its distance in typographic points. `style`: matplotlib's text style."""

    text: str
    point: tuple[float, float]
    style: Mapping[str, Any] = field(default_factory=dict)
    away: float = 5.0
    needed: bool = False


def write_labels(axes: Axes, labels: Iterable[Label], renderer: RendererBase) -> list[Annotation]:
    """Writes the labels, the needed ones first. The layout of the figure must be done before."""
    ground, written = _Ground(axes, renderer), []
    visible = [label for label in labels if label.needed or ground.shows(axes.transData.transform(label.point))]
    for label in sorted(visible, key=lambda label: not label.needed):
        costs = [(ground.cost(text.get_window_extent(renderer)), text) for text in _candidates(axes, label)]
        cost, best = min(costs, key=lambda pair: pair[0])
        for _, text in costs:
            if text is not best or (cost >= _COVERS and not label.needed):
                text.remove()
        if best.axes is not None:
            ground.boxes.append(best.get_window_extent(renderer))
            written.append(best)
    return written


def _candidates(axes: Axes, label: Label) -> list[Annotation]:
    candidates = []
    for far in _FARTHER:
        for right, up in _SIDES:
            offset = right * far * label.away, up * far * label.away
            sides: dict[str, Any] = {"ha": _ACROSS[_sign(right)], "va": _UP[_sign(up)], "textcoords": "offset points"}
            candidates.append(axes.annotate(label.text, label.point, offset, **sides, **label.style))
            candidates[-1].set_in_layout(False)
    return candidates


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


class _Ground:
    """The drawing so far, in pixels: boxes of marks and texts, paths of lines."""

    def __init__(self, axes: Axes, renderer: RendererBase) -> None:
        self._bounds = axes.get_window_extent(renderer)
        self._paths = list(_paths(axes))
        self.boxes = [*_marks(axes), *(text.get_window_extent(renderer) for text in axes.texts)]

    def shows(self, point: Any) -> bool:
        return bool(self._bounds.contains(*point))

    def cost(self, box: Bbox) -> int:
        inside = self.shows(box.min) and self.shows(box.max)
        covered = sum(bool(box.overlaps(other)) for other in self.boxes)
        crossed = sum(bool(path.intersects_bbox(box, filled=False)) for path in self._paths)
        return _LEAVES * (not inside) + _COVERS * covered + crossed


def _paths(axes: Axes) -> Iterator[Path]:
    for line in axes.lines:
        yield line.get_path().transformed(line.get_transform())
    for bars in axes.collections:
        if isinstance(bars, LineCollection):
            yield from (path.transformed(bars.get_transform()) for path in bars.get_paths())


def _marks(axes: Axes) -> Iterator[Bbox]:
    pixels = axes.figure.dpi / _POINTS_PER_INCH
    for line in axes.lines:
        if line.get_marker() not in {None, "None", ""}:
            yield from _boxes(line.get_transform().transform(line.get_xydata()), line.get_markersize() * pixels)
    for rings in axes.collections:
        if isinstance(rings, PathCollection):
            width = float(rings.get_sizes()[0]) ** 0.5 + 2 * float(np.max(rings.get_linewidth()))
            yield from _boxes(axes.transData.transform(rings.get_offsets()), width * pixels)


def _boxes(centres: Any, width: float) -> Iterator[Bbox]:
    return (Bbox.from_bounds(x - width / 2, y - width / 2, width, width) for x, y in centres)
