"""The result of a scenario, in the groups that are shown together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loadtest.report.machine import describe
from loadtest.report.scenario import Run, Scenario
from loadtest.report.summary import Point


@dataclass(frozen=True)
class Result:
    """A scenario with its points. `model`: the service's description of its model."""

    scenario: Scenario
    points: list[Point]
    model: dict[str, Any]
    machine: dict[str, str] = field(default_factory=describe)

    @property
    def modes(self) -> dict[str, list[Point]]:
        """The closed loops of one mode at several levels."""
        found = self._of(lambda run: run.loop == "closed" and not run.mixed)
        return {name: points for name, points in found.items() if len(points) > 1}

    @property
    def arrivals(self) -> dict[str, list[Point]]:
        """The open loops."""
        return self._of(lambda run: run.loop != "closed")

    @property
    def pairs(self) -> list[tuple[Point, Point]]:
        """Pairs of points at the same level: a mode alone, and the mode in the mix."""
        alone = {(p.mode, p.level): p for points in self.modes.values() for p in points}
        mixed = {run.name for run in self.scenario.runs if run.mixed and run.loop == "closed"}
        parts = {(p.mode, p.level): p for p in self.points if p.run in mixed and p.part}
        return [(point, parts[key]) for key, point in alone.items() if key in parts]

    def _of(self, choose: Callable[[Run], bool]) -> dict[str, list[Point]]:
        """The points over all modes of each chosen run that was made."""
        runs = [run for run in self.scenario.runs if choose(run)]
        found = {run.name: [p for p in self.points if p.run == run.name and not p.part] for run in runs}
        return {name: points for name, points in found.items() if points}
