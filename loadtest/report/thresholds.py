"""Thresholds that decide the exit status: `[RUN[@LEVEL]:]MEASURE>VALUE` or `<` must not be true."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields

from loadtest.report.summary import Point

_PATTERN = re.compile(r"(?:(?P<run>[\w-]+)(?:@(?P<level>[\d.]+))?:)?(?P<measure>\w+)(?P<sign>[<>])(?P<value>-?[\d.]+)")
MEASURES = tuple(field.name for field in fields(Point) if field.name not in {"run", "loop", "mode", "part"})


@dataclass(frozen=True)
class Threshold:
    """A limit on a measure, for the points of one run and level, or for all points."""

    text: str
    run: str | None
    level: float | None
    measure: str
    above: bool
    value: float

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Parses a threshold. ValueError names the allowed form."""
        match = _PATTERN.fullmatch(text.replace(" ", ""))
        if match is None or match["measure"] not in MEASURES:
            raise ValueError(
                f"threshold {text!r}; allowed: [RUN[@LEVEL]:]MEASURE>VALUE or <, MEASURE one of {', '.join(MEASURES)}"
            )
        level = float(match["level"]) if match["level"] else None
        return cls(text, match["run"], level, match["measure"], match["sign"] == ">", float(match["value"]))

    def broken(self, points: Iterable[Point]) -> list[str]:
        """Descriptions of the points that break the threshold. A threshold without any point is broken, too."""
        measured = [(point, getattr(point, self.measure)) for point in points if self._covers(point)]
        measured = [(point, value) for point, value in measured if value is not None]
        if not measured:
            return [f"{self.text}: nothing was measured"]
        return [
            f"{self.text}: {point.run} at {point.level:g} has {self.measure} {value:.4g}"
            for point, value in measured
            if (value > self.value if self.above else value < self.value)
        ]

    def _covers(self, point: Point) -> bool:
        return self.run in {None, point.run} and self.level in {None, point.level}
