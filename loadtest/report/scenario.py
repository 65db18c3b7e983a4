"""Scenarios: named lists of runs, and the objective of good requests. YAML files, in `loadtest/scenarios` or elsewhere.

A run is one start of locust. Its fields are options of `loadtest/generator/options.py`. The levels of an open loop may
be multiples of the highest rate of another run (`of`), so that a scenario fits any machine. Unknown keys are errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from loadtest.generator.arrivals import Profile
from loadtest.generator.workload import DEFAULT_MODE

FOLDER = Path(__file__).parents[1] / "scenarios"


@dataclass(frozen=True)
class Slo:
    """The objective: a good request is answered, and its first block and every further one come within these times."""

    first_block_ms: float = 1000.0
    gap_ms: float = 500.0


@dataclass(frozen=True)
class Run:
    name: str
    levels: str = ""
    users: str = "StreamUser"
    modes: str = DEFAULT_MODE
    loop: str = "closed"
    of: str = ""
    lengths: str = "uniform:16-64"
    exact: bool = False
    prompts: str = ""
    temperature: float = 0.0
    workload_seed: int = 17
    think_s: float = 0.0

    @property
    def profile(self) -> Profile:
        return Profile.parse(self.levels)

    @property
    def needs(self) -> set[str]:
        """The modes that the service must have for the run."""
        modes = {part.strip().partition(":")[0].partition("@")[0] for part in self.modes.split(",")}
        return modes - {DEFAULT_MODE}

    @property
    def mixed(self) -> bool:
        return "," in self.modes

    def scaled(self, rate: float) -> Run:
        return replace(self, levels=str(self.profile.scaled(rate)), of="")

    def options(self) -> Iterator[str]:
        yield from self.users.split(",")
        for name in ("modes", "loop", "levels", "lengths", "prompts"):
            if value := getattr(self, name):
                yield from (f"--{name}", value)
        for name in ("temperature", "workload_seed", "think_s"):
            yield from (f"--{name.replace('_', '-')}", str(getattr(self, name)))
        if self.exact:
            yield "--exact"


@dataclass(frozen=True)
class Scenario:
    title: str
    runs: tuple[Run, ...]
    slo: Slo = field(default_factory=Slo)
    warm_s: float = 1.5

    @property
    def seconds(self) -> float:
        return sum(run.profile.seconds for run in self.runs)


def read(name: str) -> Scenario:
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        path = Path(name)
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in FOLDER.glob("*.yaml")))
        raise ValueError(f"scenario {name!r}; allowed: a YAML file, or one of {there}")
    return parse(yaml.safe_load(path.read_text(encoding="utf-8")), name)


def parse(values: dict[str, Any], where: str) -> Scenario:
    """A scenario of YAML's values. `defaults` apply to all its runs."""
    values = dict(values)
    defaults = values.pop("defaults", {})
    runs = tuple(_make(Run, defaults | run, where) for run in values.pop("runs", []))
    slo = _make(Slo, values.pop("slo", {}), where)
    scenario: Scenario = _make(Scenario, values | {"runs": runs, "slo": slo}, where)
    names = [run.name for run in runs]
    for run in runs:
        _ = run.profile
        if run.of and run.of not in names[: names.index(run.name)]:
            raise ValueError(f"{where}: run {run.name!r} is measured by {run.of!r}, which does not come before it")
    if not runs or len(set(names)) != len(names):
        raise ValueError(f"{where}: the runs are named {names}; there must be one, and every name once")
    return scenario


def _make(kind: Any, values: dict[str, Any], where: str) -> Any:
    allowed = [field.name for field in fields(kind)]
    if unknown := sorted(set(values) - set(allowed)):
        raise ValueError(f"{where}: {', '.join(unknown)} in {kind.__name__.lower()}; allowed: {', '.join(allowed)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None
