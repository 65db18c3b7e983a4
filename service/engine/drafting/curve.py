"""A forward's time by its rows, as a curve through measured points. `costs.py` measures it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

#: a time so many times above the convex curve below all times is a dent
_DENT = 1.15


@dataclass(frozen=True, slots=True)
class Curve:
    """The time of a forward by its rows: linear between the points (rows, time) and beyond the last one."""

    points: tuple[tuple[int, float], ...]

    def at(self, rows: float) -> float:
        """The time at a number of rows, which may be a fraction."""
        if len(self.points) == 1:
            return self.points[0][1]
        after = min(max(1, bisect_right(self.points, (rows, 0.0))), len(self.points) - 1)
        (low, fast), (high, slow) = self.points[after - 1], self.points[after]
        return fast + (slow - fast) * (max(rows, self.points[0][0]) - low) / (high - low)

    def slope(self, low: float, high: float) -> float:
        """The mean time of one more row, from `low` to `high` rows."""
        return (self.at(high) - self.at(low)) / (high - low)

    def onward(self, rows: int) -> Curve:
        """The convex curve below this one, from a number of rows on."""
        farther = [point for point in self.points if point[0] > rows]
        last = 2 * (farther[-1][0] if farther else rows)
        return lower_hull([(rows, self.at(rows)), *farther, (last, self.at(last))])


def lower_hull(times: Sequence[tuple[int, float]]) -> Curve:
    """The convex curve below the measured times, by ascending rows. Times above it were disturbed by other work."""
    points: list[tuple[int, float]] = []
    for rows, seconds in times:
        # more rows never take less
        while points and points[-1][1] > seconds:
            points[-1] = (points[-1][0], seconds)
            if len(points) < 2 or points[-2][1] <= seconds:
                break
            points.pop()
        while len(points) > 1 and _slope(points[-2], points[-1]) > _slope(points[-1], (rows, seconds)):
            points.pop()
        points.append((rows, seconds))
    return Curve(tuple(points))


def dented(times: Sequence[tuple[int, float]]) -> Curve:
    """The convex curve below the measured times, by ascending rows, with the dents that lie far above it."""
    hull, dear, last = lower_hull(times), dents(times), times[-1][0]
    points, least = [(2 * last, hull.at(2 * last))], inf  # beyond the last time there are no dents
    for rows, seconds in reversed(times):
        least = min(least, seconds)  # more rows never take less
        points.append((rows, least if rows in dear else hull.at(rows)))
    return Curve(tuple(reversed(points))) if dear else hull


def dents(times: Sequence[tuple[int, float]]) -> set[int]:
    """The rows whose times lie far above the convex curve below all of them."""
    hull = lower_hull(times)
    return {rows for rows, seconds in times if seconds > _DENT * hull.at(rows)}


def _slope(a: tuple[int, float], b: tuple[int, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])
